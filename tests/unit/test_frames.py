"""What a reply announces is judged before a parser believes it, however its bytes are cut."""

from __future__ import annotations

from typing import Any

import hiredis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_state_sync.frames import MAX_ELEMENTS, MAX_LINE_BYTES, Frames, ReplyTooLargeError
from tests.unit.bounds import assert_linear

NOTHING = object()
PARSER = "refused by the parser"


def verdict(data: bytes, step: int, allowance: int, max_elements: int = MAX_ELEMENTS) -> str | None:
    """Why the bytes are refused, or None. A parser reads along."""
    guard, reader = Frames(allowance, max_elements), hiredis.Reader(notEnoughData=NOTHING)
    for start in range(0, len(data), step):
        try:
            guard.saw(memoryview(data)[start : start + step])
        except ReplyTooLargeError as error:
            return str(error)
        try:
            reader.feed(data[start : start + step])
            while (reply := reader.gets()) is not NOTHING:
                assert longest(reply) <= max_elements
        except (hiredis.HiredisError, ValueError, TypeError):
            return PARSER  # What it refuses ends the connection.
    return None


def longest(reply: Any) -> int:
    if not isinstance(reply, (list, dict)):
        return 0
    return max([len(reply), *map(longest, reply)])


@pytest.mark.parametrize("step", [1, 2, 3, 7, 100])
@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"$101\r\n", "a value of 101 bytes"),
        (b"$99999999999999999999999\r\n", "a value of 99999999999999999999 bytes"),
        (b"=101\r\n", "a value of 101 bytes"),
        (b"*3\r\n$2\r\nab\r\n$-1\r\n$90\r\n", "a value of 90 bytes"),
        (b"*8\r\n", "8 elements"),
        (b"*1\r\n*1\r\n*2147483647\r\n", "2147483647 elements"),
        (b"%8\r\n", "8 elements"),
        (b"~8\r\n", "8 elements"),
        (b">8\r\n", "8 elements"),
        (b"|8\r\n", "8 elements"),
        (b"$5\r\n*9\r\n\n\r\n*8\r\n", "8 elements"),
        (b"+$9\r\n*8\r\n", "8 elements"),
        (b"$0\r\n\r\n*8\r\n", "8 elements"),
        (b"+" + b"x" * 101, "more than what was asked for"),
        (b"$80\r\n" + b"x" * 80 + b"\r\n$80\r\n", "a value of 80 bytes"),
    ],
)
def test_refuses(data: bytes, says: str, step: int) -> None:
    """Long values, many elements and too many bytes are refused by what is announced: C58."""
    assert says in str(verdict(data, step, 100, max_elements=7))


@pytest.mark.parametrize("step", [1, 2, 3, 7, 100])
@pytest.mark.parametrize(
    "data", [b"+a\n$90\r\n*8\r\n", b"-a\r$90\r\n*8\r\n", b"+$9\r\r\n*8\r\n", b"!90\r\n*8\r\n"]
)
def test_lines_that_look_like_announcements(data: bytes, step: int) -> None:
    """A line within a line hides nothing that follows: guard or parser refuses it: C58."""
    assert verdict(data, step, 200, max_elements=7) is not None


@pytest.mark.parametrize("step", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(
    "data",
    [
        b"*7\r\n" + b":1\r\n" * 7,
        b"$90\r\n" + b"*9\r\n$999\r\n".ljust(90, b"\n") + b"\r\n",
        b"$5\r\n*9\r\n\n\r\n+OK\r\n",
        b"$-1\r\n*-1\r\n_\r\n,inf\r\n(99\r\n#t\r\n",
        b"*2\r\n$2\r\n\r\n\r\n%1\r\n+a\r\n$3\r\n*9\r\r\n",
        b"-ERR *9 elements and $999 bytes\r\n",
        b"+*9\r\n",
        b":999999\r\n",
    ],
)
def test_takes(data: bytes, step: int) -> None:
    """What is within the limits passes, whatever stands inside of values: C58."""
    assert verdict(data, step, len(data), max_elements=7) is None


parts = st.lists(
    st.sampled_from(
        [b"*2\r\n", b"*7\r\n", b"*8\r\n", b"*-1\r\n", b"$3\r\n", b"$-1\r\n", b"$60\r\n",
         b"abc\r\n", b":1\r\n", b"+a\r\n", b"+a\n$9\r\n", b"-E\r\n", b"\r", b"\n", b"%1\r\n",
         b"=5\r\n", b"txt:a", b">1\r\n", b"$", b"9", b"*", b"_\r\n"]
    )
    | st.binary(max_size=4),
    max_size=12,
).map(b"".join)  # fmt: skip


@given(parts, st.integers(1, 9))
def test_cuts_do_not_matter(data: bytes, step: int) -> None:
    """No list beyond the limit gets to the parser, and the verdict is that of the whole: C58."""
    whole, cut = (verdict(data, s, len(data) + 50, max_elements=7) for s in (len(data) or 1, step))
    if cut is not None:
        assert whole is not None
    if whole not in (None, PARSER):
        assert cut is not None


def test_a_line_has_a_limit() -> None:
    """A line without end is refused: a parser would search it again and again: C58, C69."""
    assert "a line of more than" in str(verdict(b"+" + b"x" * MAX_LINE_BYTES, 1000, 1 << 20))
    assert verdict(b"+" + b"x" * (MAX_LINE_BYTES - 3) + b"\r\n", 1000, 1 << 20) is None


@pytest.mark.parametrize("line", [b"+\r\n", b":12345\r\n", b"$0\r\n\r\n", b"$20\r\n" + bytes(22)])
def test_time(line: bytes) -> None:
    """Following what comes takes time in proportion to it: C58, C69."""

    def make(size: int) -> Any:
        data = memoryview(line * (size // len(line)))
        return lambda: [
            guard.saw(data[start : start + 65536])
            for guard in [Frames(1 << 30)]
            for start in range(0, len(data), 65536)
        ]

    assert_linear(make, 100_000)
