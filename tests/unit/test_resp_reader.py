"""Replies are read as they were written, however they come; what is none is an error."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import hiredis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_state_sync.frames import MAX_ELEMENTS, MAX_LINE_BYTES, ReplyTooLargeError
from redis_state_sync.resp_reader import MAX_DEPTH, MalformedReplyError, RespReader
from tests.unit import resp_values
from tests.unit.bounds import assert_linear, peak_memory
from tests.unit.resp_values import ErrorReply, Pieces, Reply, bulk, cuts, pushes

Cuts = Iterable[int]
PLENTY = 1 << 30
END = (ConnectionError,)
REFUSED = (ReplyTooLargeError, MalformedReplyError)


def reading(data: bytes, at: Cuts = (), allowance: int = PLENTY) -> RespReader:
    reader = RespReader(Pieces(data, at), ErrorReply)
    reader.begin(allowance)
    return reader


def by_hiredis(data: bytes) -> list[Any]:
    reader = hiredis.Reader(replyError=ErrorReply, notEnoughData=END)
    reader.feed(data)
    found = []
    while (reply := reader.gets()) is not END:
        found.append(reply)
    return found


@given(st.lists(resp_values.resp2 | resp_values.resp3, min_size=1, max_size=3), cuts)
def test_as_hiredis(replies: list[Reply], at: Cuts) -> None:
    """Any replies, cut anywhere, are read as they were meant, and as hiredis reads them.

    It judges attributes, blob errors and big numbers differently: these are in the test below.
    """
    data = b"".join(reply.wire for reply in replies)
    reader = reading(data, at)
    found = [reader.read() for _ in replies]
    assert found == [reply.value for reply in replies] == by_hiredis(data)
    with pytest.raises(END):
        reader.read()


@given(st.lists(st.tuples(pushes, resp_values.anything), min_size=1, max_size=3), pushes, cuts)
def test_pushes_between_replies(
    told: list[tuple[bytes, Reply]], last: bytes, at: list[int]
) -> None:
    """Messages that are no replies are counted, and change no reply before or behind them."""
    reader = reading(b"".join(push + reply.wire for push, reply in told) + last, at)
    assert [reader.read() for _ in told] == [reply.value for _, reply in told]
    assert reader.pushes == len(told)
    assert reader.read_pushes() is False
    assert reader.pushes == len(told) + 1


@given(st.lists(pushes, max_size=3), cuts)
def test_pushes_while_nobody_asked(told: list[bytes], at: Cuts) -> None:
    """Looking for messages takes those that came, and says if there is anything else."""
    reader = reading(b"".join(told) + b"+OK\r\n", at)
    assert reader.read_pushes() is True
    assert reader.pushes == len(told)
    assert reader.read() == b"OK"
    assert reader.read_pushes() is False


def test_a_push_is_no_part_of_a_reply() -> None:
    """A message inside of a reply is refused; what looks like one within a value is a value."""
    for data in (b"*1\r\n>1\r\n:1\r\n:1\r\n", b"|1\r\n+a\r\n+b\r\n>1\r\n:1\r\n:1\r\n"):
        with pytest.raises(MalformedReplyError):
            reading(data).read()
    reader = reading(bulk(b">1\r\n:1\r\n"))
    assert reader.read() == b">1\r\n:1\r\n"
    assert reader.pushes == 0


BEFORE, AFTER = b">2\r\n+invalidate\r\n*1\r\n$1\r\nk\r\n:7\r\n", b"$5\r\nafter\r\n"


@pytest.mark.parametrize("room", [9, 10, 11, 0])
def test_into_a_buffer(room: int) -> None:
    """A value of just the length of a buffer goes into it, wherever its bytes are cut."""
    data = BEFORE + bulk(b"0123456789") + AFTER
    for at in range(len(data)):
        buffer = memoryview(bytearray(b"-" * room))
        reader = reading(data, [at])
        assert reader.read(buffer) == 7  # Another reply leaves it alone.
        found = reader.read(buffer)
        assert found == b"0123456789"
        assert (found is buffer) == (room == 10)
        assert room == 10 or bytes(buffer) == b"-" * room
        assert reader.read(buffer) == b"after"


@pytest.mark.parametrize("wire", [b"$-1\r\n", b"_\r\n", b"+0123456789\r\n", b"-0123456789\r\n",
                                  b"*1\r\n$10\r\n0123456789\r\n"])  # fmt: skip
def test_what_goes_into_no_buffer(wire: bytes) -> None:
    """What is no value of that length leaves the buffer as it was."""
    buffer = memoryview(bytearray(b"-" * 10))
    assert reading(wire).read(buffer) is not buffer
    assert bytes(buffer) == b"-" * 10


def test_an_empty_value_into_an_empty_buffer() -> None:
    """A value of no bytes is one, too."""
    buffer = memoryview(bytearray())
    assert reading(b"$0\r\n\r\n").read(buffer) is buffer


@pytest.mark.parametrize("size", [60_000, 65_535, 65_536, 65_538, 65_540, 300_000])
def test_values_longer_than_the_readers_own_buffer(size: int) -> None:
    """Long values come whole, into a buffer or not, in few pieces or many."""
    value = (bytes(range(251)) * (size // 251 + 1))[:size]
    for step in (size + 100, 65_536, 7_919):
        for into in (None, memoryview(bytearray(size))):
            reader = reading((b"+x\r\n" + bulk(value)) * 2, range(0, 3 * size, step))
            for _ in range(2):
                assert reader.read() == b"x"
                found = reader.read(into)
                assert found == value
                assert (found is into) == (into is not None)


DEEP = b"*1\r\n" * MAX_DEPTH
BOUNDS = {
    "elements": (b"*%d\r\n" % (MAX_ELEMENTS + 1), "131073 elements"),
    "very many elements": (b"*2147483647\r\n" * 7, "2147483647 elements"),
    "pairs": (b"%1073741824\r\n", "1073741824 elements"),
    "members": (b"~131073\r\n", "131073 elements"),
    "attributes": (b"|131073\r\n", "131073 elements"),
    "parts of a push": (b">131073\r\n", "131073 elements"),
    "a value": (b"$1001\r\n", "a value of 1001 bytes where at most"),
    "a very long value": (b"$99999999999999999999\r\n", "a value of 9999999999"),
    "a very long length": (b"$99999999999999999999999\r\n", "begins with"),
    "a length with many zeros": (b"$" + b"0" * 20 + b"1\r\nx\r\n", "begins with"),
    "a text": (b"=1001\r\n", "a value of 1001 bytes"),
    "an error": (b"!1001\r\n", "a value of 1001 bytes"),
    "a value inside": (b"*2\r\n:1\r\n$1001\r\n", "a value of 1001 bytes"),
    "a second value": (b"*2\r\n" + bulk(bytes(600)) * 2, "a value of 600 bytes where at most"),
    "endless replies": (b"*131072\r\n" + b":1\r\n" * 131_072, "more than what was asked for"),
    "endless pushes": (b">1\r\n:1\r\n" * 100_000, "more than what was asked for"),
    "a push of much": (b">1\r\n" + bulk(bytes(1001)), "a value of 1001 bytes"),
    "depth": (DEEP + b"*1\r\n:1\r\n", "nested too deeply"),
    "depth of maps": (b"%1\r\n+a\r\n" * (MAX_DEPTH + 1), "nested too deeply"),
    "attributes of attributes": (b"|1\r\n+a\r\n" * 100_000, "nested too deeply"),
    "attributes before attributes": (b"|0\r\n" * 100_000 + b":1\r\n", "nested too deeply"),
    "a streamed value": (b"$?\r\n;4\r\nabcd\r\n;0\r\n", r"begins with b'\$\?'"),
    "a streamed list": (b"*?\r\n:1\r\n.\r\n", r"begins with b'\*\?'"),
    "a streamed map": (b"%?\r\n+a\r\n:1\r\n.\r\n", "begins with b'%"),
    "a value that is too long": (b"$3\r\nabcd\r\n", "longer than announced"),
    "a negative length": (b"$-2\r\n", "begins with"),
    "no number": (b":abc\r\n", "begins with"),
    "no length": (b"$\r\n", "begins with"),
    "an odd boolean": (b"#x\r\n", "begins with"),
    "an odd null": (b"_x\r\n", "begins with"),
    "an empty line": (b"\r\n", "begins with b''"),
    "another protocol": (b"HTTP/1.1 400 Bad Request\r\n", "begins with b'HTTP"),
    "a list as a key": (b"%1\r\n*0\r\n:1\r\n", "begins with"),
}


@pytest.mark.parametrize("step", [1, 1000, PLENTY])
@pytest.mark.parametrize(("data", "says"), BOUNDS.values(), ids=BOUNDS)
def test_bounds(data: bytes, says: str, step: int) -> None:
    """What is too much, too deep or no reply is refused, and takes no memory: C58."""
    reader = RespReader(Pieces(data, range(0, min(len(data), 2000 * step), step)), ErrorReply)
    reader.begin(1000)

    def refused() -> None:
        with pytest.raises(REFUSED, match=says) as caught:
            reader.read()
        assert len(str(caught.value)) < 200

    # Half a line at most is copied, and pieces are made of what is offered.
    assert peak_memory(refused) < 1 << 20


@pytest.mark.parametrize("step", [1, 1000, PLENTY])
@pytest.mark.parametrize("kind", [b"+", b"-", b"$", b"*", b":", b"x"])
def test_a_line_has_a_limit(kind: bytes, step: int) -> None:
    """A line without end is refused, whatever it is the beginning of: C58, C69."""
    reader = reading(kind + b"1" * (MAX_LINE_BYTES + 1), range(0, 2000 * step, step))
    with pytest.raises(ReplyTooLargeError, match="a line of more than"):
        reader.read()


def test_a_line_within_the_limit() -> None:
    """The longest line that is allowed is read, also where another one stands before it."""
    longest = b"x" * (MAX_LINE_BYTES - 1)
    reader = reading((b"+" + longest + b"\r\n") * 2, range(0, 1 << 18, 1009))
    assert [reader.read(), reader.read()] == [longest] * 2


def test_a_number_without_end() -> None:
    """A number that takes long to read is none."""
    with pytest.raises(MalformedReplyError, match="begins with b':9") as caught:
        reading(b":" + b"9" * 60_000 + b"\r\n").read()
    assert len(str(caught.value)) < 200


def test_the_allowance_is_for_each_exchange() -> None:
    """What one exchange leaves of its allowance is nothing to the next one."""
    reader = reading(bulk(bytes(900)) * 3, range(0, 10_000, 100), allowance=1000)
    for _ in range(3):
        reader.begin(1000)
        assert reader.read() == bytes(900)


def test_as_deep_as_ours_may_be() -> None:
    """The deepest that is allowed is read, on each level of which attributes may stand."""
    expected: Any = 1
    for _ in range(MAX_DEPTH):
        expected = [expected]
    assert reading(DEEP + b":1\r\n").read() == expected
    assert reading(b"*1\r\n|1\r\n+a\r\n*0\r\n*1\r\n:1\r\n").read() == [[1]]


def test_endless_pushes_while_nobody_asked() -> None:
    """Whoever looks for messages takes no more of them than allowed: C58."""
    push = b">1\r\n:1\r\n"
    # Each piece ends where a message does: nothing has to be waited for.
    reader = reading(push * 10_000, range(0, 1 << 20, 10 * len(push)), allowance=1000)
    with pytest.raises(ReplyTooLargeError, match="more than what was asked for"):
        reader.read_pushes()


parts = st.lists(
    st.sampled_from(
        [b"*2\r\n", b"*7\r\n", b"*8\r\n", b"*-1\r\n", b"$3\r\n", b"$-1\r\n", b"$60\r\n", b"$0\r\n",
         b"abc\r\n", b":1\r\n", b"+a\r\n", b"+a\n$9\r\n", b"-E\r\n", b"\r", b"\n", b"%1\r\n",
         b"=5\r\n", b"txt:a", b">1\r\n", b"$", b"9", b"*", b"_\r\n", b"|1\r\n", b"(9\r\n",
         b",nan\r\n", b",1e\r\n", b"#t\r\n", b"!1\r\n", b"$?\r\n", b"\r\n", b"*99999999\r\n"]
    )
    | st.binary(max_size=4),
    max_size=12,
).map(b"".join)  # fmt: skip


def mutated(reply: Reply, at: int, change: bytes, skipped: int) -> bytes:
    at %= len(reply.wire)
    return reply.wire[:at] + change + reply.wire[at + skipped :]


damaged = st.builds(
    mutated, resp_values.anything, st.integers(0, 2**16), st.binary(max_size=3), st.integers(0, 3)
)


def outcome(data: bytes, at: Cuts) -> list[Any]:
    """What is read up to an error, and its kind."""
    reader = reading(data, at)
    into = memoryview(bytearray(3))
    found: list[Any] = []
    try:
        while True:
            reply = reader.read(into)
            found.append((bytes(reply) if reply is into else reply, reader.pushes))
    except (*REFUSED, *END) as error:
        found.append((type(error), str(error)))
    return found


@given(parts | damaged, cuts)
def test_whatever_comes(data: bytes, at: Cuts) -> None:
    """Any bytes are values, a clear error or the peer's end; how they are cut does not matter."""
    found = outcome(data, at)
    assert repr(found) == repr(outcome(data, []))
    for reply, _ in found[:-1]:
        check(reply)


def check(reply: Any) -> None:
    if isinstance(reply, list):
        for inner in reply:
            check(inner)
    elif isinstance(reply, dict):
        check([*reply, *reply.values()])
    else:
        assert reply is None or isinstance(reply, (bytes, int, float, ErrorReply))


@pytest.mark.parametrize("wire", [b"+\r\n", b":12345\r\n", b"$0\r\n\r\n", bulk(bytes(20))])
@pytest.mark.parametrize("step", [1000, 65_536])
def test_time(wire: bytes, step: int) -> None:
    """Reading takes time in proportion to what comes: C58, C69."""

    def make(size: int) -> Any:
        count = size // len(wire)
        data = wire * count
        edges = range(0, len(data), step)
        return lambda: [reader.read() for reader in [reading(data, edges)] for _ in range(count)]

    assert_linear(make, 20_000)


def test_progress_while_a_large_value_comes() -> None:
    """Who asked for it hears of progress with every MiB of a value, and of none without asking."""
    size, told = (5 << 20) + 7, []
    data = b"$%d\r\n%b\r\n" % (size, b"x" * size)
    into = memoryview(bytearray(size))
    reader = RespReader(Pieces(data, range(0, len(data), 70_001)), ErrorReply)
    reader.begin(2 * size, lambda: told.append(1))
    assert reader.read(into) is into
    assert into == b"x" * size
    assert 5 <= len(told) <= 6
    again = RespReader(Pieces(data), ErrorReply)
    again.begin(2 * size)
    assert again.read() == b"x" * size
    assert 5 <= len(told) <= 6
