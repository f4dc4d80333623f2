"""A connected socket: as patient as it is told, whatever the peer, the kernel and signals do."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from redis_state_sync.bare_socket import byte_stream
from tests.unit.sockets import KINDS, Ends, beside, connected, signals

# Far above what is asked for: the machine is shared.
MUCH_TOO_LONG = 5.0
LONG = 60.0
# More than a connection of `connected` holds on its way.
MUCH = 8 << 20


@pytest.fixture(params=KINDS)
def ends(request: pytest.FixtureRequest) -> Iterator[Ends]:
    with connected(request.param) as made:
        yield made


def room(size: int) -> memoryview:
    return memoryview(bytearray(size))


CALLS: dict[str, Callable[[Ends], Any]] = {
    "receive": lambda ends: ends.stream.receive(room(10)),
    "fill": lambda ends: ends.stream.fill(room(10)),
    "send": lambda ends: ends.stream.send([bytes(1000), bytes(MUCH)]),
}


def is_given_up(call: Callable[[], Any]) -> float:
    """The seconds until it is."""
    started = time.monotonic()
    with pytest.raises(TimeoutError):
        call()
    took = time.monotonic() - started
    assert took < MUCH_TOO_LONG
    return took


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_peer_that_does_nothing(ends: Ends, call: Callable[[Ends], Any]) -> None:
    """Who waits for a peer in vain is told so when the deadline has passed, and not before."""
    ends.stream.begin(time.monotonic() + 0.1, LONG)
    assert is_given_up(lambda: call(ends)) > 0.09


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_stall(ends: Ends, call: Callable[[Ends], Any]) -> None:
    """Where nothing comes or goes for so long it is given up long before the deadline: C74."""
    ends.stream.begin(time.monotonic() + LONG, 0.1)
    assert is_given_up(lambda: call(ends)) > 0.09


def test_a_stall_in_the_middle(ends: Ends) -> None:
    """The same after some bytes of a value came."""
    ends.stream.begin(time.monotonic() + LONG, 0.1)
    ends.peer.sendall(bytes(1000))
    is_given_up(lambda: ends.stream.fill(room(2000)))


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_no_time_left(ends: Ends, call: Callable[[Ends], Any]) -> None:
    """Behind the deadline nothing is sent and nothing is taken, though it could be."""
    ends.peer.sendall(b"x" * 10)
    ends.stream.begin(time.monotonic() - 1.0, None)
    with pytest.raises(TimeoutError):
        call(ends)
    ends.peer.settimeout(0.02)
    with pytest.raises(TimeoutError):
        ends.peer.recv(1)
    ends.stream.begin(time.monotonic() + LONG, None)
    ends.stream.fill(room(10))


def drip(ends: Ends, enough: threading.Event) -> None:
    """Sends a byte now and then, without end."""
    while not enough.wait(0.01):
        ends.peer.sendall(b"x")


def sip(ends: Ends, enough: threading.Event) -> None:
    """Reads a little now and then, without end."""
    while not enough.wait(0.05):
        ends.peer.recv(32 << 10)


@pytest.mark.parametrize("stall", [None, 1.0])
@pytest.mark.parametrize(
    ("peer", "call"),
    [
        (drip, lambda ends: ends.stream.fill(room(MUCH))),
        (sip, lambda ends: ends.stream.send([bytes(MUCH)])),
    ],
    ids=["fill", "send"],
)
def test_a_dripping_peer(
    ends: Ends,
    peer: Callable[[Ends, threading.Event], None],
    call: Callable[[Ends], Any],
    stall: float | None,
) -> None:
    """A peer that does a little now and then stretches no deadline: C72."""
    enough = threading.Event()
    with beside(lambda: peer(ends, enough)):
        ends.stream.begin(time.monotonic() + 0.2, stall)
        try:
            assert is_given_up(lambda: call(ends)) < 2.0
        finally:
            enough.set()


def test_slow_is_not_stalled_receiving(ends: Ends) -> None:
    """A value may take longer than the stall limit, as long as bytes arrive: C74."""

    def slowly() -> None:
        for number in range(12):
            time.sleep(0.05)
            ends.peer.sendall(bytes([number]))

    with beside(slowly):
        ends.stream.begin(time.monotonic() + LONG, 0.5)
        value = room(12)
        ends.stream.fill(value)
    assert bytes(value) == bytes(range(12))


def test_slow_is_not_stalled_sending(ends: Ends) -> None:
    """An upload may take longer than the stall limit, as long as bytes go out: C74."""
    read: list[int] = []

    def slowly() -> None:
        while sum(read) < MUCH:
            read.append(len(ends.peer.recv(MUCH // 12)))
            if len(read) < 12:
                time.sleep(0.05)

    with beside(slowly):
        ends.stream.begin(time.monotonic() + LONG, 0.5)
        started = time.monotonic()
        ends.stream.send([bytes(MUCH)])
        assert time.monotonic() - started > 0.5
    assert sum(read) == MUCH


def test_a_shorter_deadline_than_before(ends: Ends) -> None:
    """The limit that an exchange left with the kernel holds nobody in the next, shorter one."""
    ends.peer.sendall(bytes(20))
    ends.stream.begin(time.monotonic() + LONG, None)
    ends.stream.fill(room(10))
    for stall, seconds in ((None, 0.1), (0.1, LONG)):
        ends.stream.begin(time.monotonic() + LONG, None)
        ends.stream.fill(room(4))
        ends.stream.begin(time.monotonic() + seconds, stall)
        is_given_up(lambda: ends.stream.fill(room(10)))
        ends.peer.sendall(bytes(8))


def test_a_longer_deadline_than_before(ends: Ends) -> None:
    """The limit that an exchange left with the kernel does not end the next, longer one."""
    ends.peer.sendall(bytes(10))
    ends.stream.begin(time.monotonic() + 0.1, None)
    ends.stream.fill(room(10))

    def later() -> None:
        for _ in range(2):
            ends.peer.sendall(bytes(5))
            time.sleep(0.2)

    with beside(later):
        ends.stream.begin(time.monotonic() + LONG, None)
        ends.stream.fill(room(10))


def test_no_deadline_is_too_far(ends: Ends) -> None:
    """Whoever has a year has the time that a system call takes."""
    ends.stream.begin(time.monotonic() + 3e7, 3e7)
    ends.peer.sendall(bytes(20))
    ends.stream.fill(room(10))
    assert ends.stream.receive(room(10)) == 10
    ends.stream.send([b"x"])
    assert ends.peer.recv(9) == b"x"


class Counting(socket.socket):
    """Counts how often the kernel is told a limit."""

    told = 0

    def setsockopt(self, *arguments: Any) -> None:
        self.told += 1
        super().setsockopt(*arguments)


def test_the_kernel_is_told_its_limit_once() -> None:
    """Exchanges that have about the same time cost no system call for it."""
    left, peer = socket.socketpair()
    with Counting(fileno=left.detach()) as ours, peer:
        stream = byte_stream(ours)
        assert stream is not None
        for _ in range(20):
            stream.begin(time.monotonic() + LONG, 1.0)
            peer.sendall(bytes(20))
            stream.fill(room(10))
            stream.receive(room(10))
        assert ours.told == 1


def test_many_buffers(ends: Ends) -> None:
    """More buffers than the kernel takes at once go out whole and in order, in whatever pieces."""
    buffers: list[Any] = [bytes([i % 251]) * (i % 700) for i in range(3000)]
    buffers[1500] = memoryview(bytes(range(256)) * 4000)
    expected = b"".join(buffers)
    received = bytearray()

    def read() -> None:
        while len(received) < len(expected):
            received.extend(ends.peer.recv(10_000))

    with beside(read):
        ends.stream.begin(time.monotonic() + LONG, LONG)
        ends.stream.send(buffers)
    assert bytes(received) == expected


def test_nothing_to_send(ends: Ends) -> None:
    """Empty buffers, and none, are sent at once."""
    ends.stream.begin(time.monotonic() + LONG, None)
    for buffers in ([], [b""], [b"", b""], [b"", b"x", b""]):
        ends.stream.send(buffers)
    assert ends.peer.recv(9) == b"x"


def test_receive_now(ends: Ends) -> None:
    """What is there is taken without waiting, and no more than asked for; else nothing."""
    ends.stream.begin(time.monotonic() - 1.0, None)
    view = room(3)
    started = time.monotonic()
    for _ in range(10):
        assert ends.stream.receive_now(view) == 0
    assert time.monotonic() - started < MUCH_TOO_LONG
    ends.peer.sendall(b"abcd")
    taken = b""
    while len(taken) < 4 and time.monotonic() - started < MUCH_TOO_LONG:
        taken += bytes(view[: ends.stream.receive_now(view)])
    assert taken == b"abcd"
    assert ends.stream.receive_now(view) == 0
    # Afterwards, others wait as before.
    ends.stream.begin(time.monotonic() + 0.1, None)
    assert is_given_up(lambda: ends.stream.receive(view)) > 0.09


def hang_up(ends: Ends) -> None:
    ends.peer.close()


def reset(ends: Ends) -> None:
    # Bare: a TLS socket would first take leave.
    ends.peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    ends.peer.close()


@pytest.mark.parametrize("end", [hang_up, reset])
@pytest.mark.parametrize(
    "call",
    [
        *CALLS.values(),
        lambda ends: until_something(lambda: ends.stream.receive_now(room(10))),
    ],
    ids=[*CALLS, "receive_now"],
)
@pytest.mark.parametrize("before", [0, 5])
def test_a_peer_that_ends(
    ends: Ends, end: Callable[[Ends], None], call: Callable[[Ends], Any], before: int
) -> None:
    """The end of a connection is an error, at once and wherever it comes; what came is there."""
    if before:
        ends.peer.sendall(bytes(before))
        ends.stream.begin(time.monotonic() + LONG, None)
        ends.stream.fill(room(before))
    timer = threading.Timer(0.02, end, args=(ends,))
    timer.start()
    ends.stream.begin(time.monotonic() + LONG, None)
    started = time.monotonic()
    with pytest.raises(OSError, match=r"(?i)closed|reset|pipe|EOF|protocol") as caught:
        call(ends)
    assert not isinstance(caught.value, TimeoutError)
    assert time.monotonic() - started < MUCH_TOO_LONG
    timer.join()


def until_something(call: Callable[[], int]) -> None:
    deadline = time.monotonic() + MUCH_TOO_LONG
    while not call() and time.monotonic() < deadline:
        time.sleep(0.001)


def test_the_end_in_the_middle_of_a_value(ends: Ends) -> None:
    """A value of which the end never comes is an error, not a shorter value."""
    ends.peer.sendall(bytes(1000))
    timer = threading.Timer(0.02, ends.peer.close)
    timer.start()
    ends.stream.begin(time.monotonic() + LONG, None)
    with pytest.raises(OSError, match=r"(?i)closed|reset|EOF"):
        ends.stream.fill(room(2000))
    timer.join()


@pytest.mark.parametrize("stall", [None, 0.15])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_steady_signal(ends: Ends, call: Callable[[Ends], Any], stall: float | None) -> None:
    """Signals that are handled, however many, stretch no limit: C72."""
    with signals(lambda *_: None, 0.01):
        ends.stream.begin(time.monotonic() + (0.15 if stall is None else LONG), stall)
        is_given_up(lambda: call(ends))


def test_signals_cost_no_byte(ends: Ends) -> None:
    """What is sent and received while signals are handled is all there, once and in order."""
    out, back = bytes(range(256)) * 8000, bytes(range(255, -1, -1)) * 8000
    received = bytearray()

    def serve() -> None:
        while len(received) < len(out):
            received.extend(ends.peer.recv(100_000))
            time.sleep(0.002)
        for start in range(0, len(back), 100_000):
            ends.peer.sendall(back[start : start + 100_000])
            time.sleep(0.002)

    handled: list[int] = []
    with signals(lambda *_: handled.append(1), 0.001), beside(serve):
        ends.stream.begin(time.monotonic() + LONG, LONG)
        ends.stream.send([out[:5], memoryview(out)[5:]])
        value = room(len(back))
        ends.stream.fill(value)
    assert handled
    assert bytes(received) == out
    assert value == back


class StopError(Exception):
    """What a handler raises."""


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_signal_whose_handler_raises(ends: Ends, call: Callable[[Ends], Any]) -> None:
    """Ctrl-C and the like end a call at once, however long it might wait."""
    raised: list[int] = []

    def stop(*_: Any) -> None:
        if not raised:
            raised.append(1)
            raise StopError

    ends.stream.begin(time.monotonic() + LONG, None)
    started = time.monotonic()
    with signals(stop, 0.02), pytest.raises(StopError):
        call(ends)
    assert time.monotonic() - started < MUCH_TOO_LONG


def test_what_is_no_socket() -> None:
    """What is no socket of this machine, as fakeredis' are none, is left to others."""
    assert byte_stream(object()) is None
