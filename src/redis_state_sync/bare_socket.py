"""Reading and writing a connected socket in few calls, within a deadline and a stall limit.

Python's own time limits make a socket non-blocking: then a large value wakes the reader for each
piece of it. Here the kernel waits until it is there whole (MSG_WAITALL), within a limit that it
keeps (SO_RCVTIMEO: socket(7)), and takes many buffers at once (sendmsg). TLS must see every byte:
there Python's limits stay.
"""

from __future__ import annotations

import select
import socket
import ssl
import struct
import sys
import time
from collections.abc import Sequence
from typing import Any, Protocol

from redis_state_sync.resp import parts

_FOREVER = float("inf")
# For one call; poll(2) takes no more than 24 days.
_LONGEST_S = 86_400.0
# Less would be rounded to "no limit".
_SHORTEST_S = 0.001
# The limit that the kernel keeps is set anew only if it is off by more than this: setting it is a
# system call, and nearly every exchange has nearly the same time.
_CLOSE_ENOUGH = 0.5
_MOST_BUFFERS = 1024  # IOV_MAX
# Of a Unix socket: at least so many bytes go at once, and no more pieces of them in one call.
_PIECE_BYTES = 32 << 10
_MOST_PIECES = 256
# There is room for so little, as a rule: nobody waits for it.
_SHORT = 4 << 10


class ByteStream(Protocol):
    """A connected socket, TLS or not."""

    def begin(self, deadline: float, stall: float | None) -> None:
        """Begins an exchange.

        Args:
            deadline: A `time.monotonic()` after which nothing is read or written.
            stall: Seconds without a byte after which it is given up earlier.
        """
        ...

    def send(self, chunks: Sequence[Any]) -> None:
        """Sends all bytes of some buffers; raises `TimeoutError` or `OSError`."""
        ...

    def receive(self, view: memoryview) -> int:
        """Waits for bytes, and takes those that are there; raises `TimeoutError` or `OSError`."""
        ...

    def fill(self, view: memoryview) -> None:
        """Receives until a buffer is full; raises `TimeoutError` or `OSError`."""
        ...

    def is_quiet(self) -> bool:
        """Whether nothing came that was not received yet, for all that can be told at once."""
        ...

    def receive_now(self, view: memoryview) -> int:
        """Takes what is there without waiting; 0 if that is nothing; raises `OSError`."""
        ...


def byte_stream(sock: Any) -> ByteStream | None:
    """The stream of a connected socket, or None for one that is none of this machine's own."""
    if isinstance(sock, ssl.SSLSocket):
        return TlsStream(sock)
    if isinstance(sock, socket.socket) and sys.platform == "linux":
        return PlainStream(sock)
    return None


class _Limits:
    """What is left of an exchange's time."""

    _deadline = 0.0
    _stall = 0.0

    def begin(self, deadline: float, stall: float | None) -> None:
        """See `ByteStream.begin`."""
        self._deadline = deadline
        self._stall = _FOREVER if stall is None else stall

    def _patience(self) -> float:
        """Seconds that may pass until the next byte; raises `TimeoutError` if none may."""
        patience = min(self._deadline - time.monotonic(), self._stall, _LONGEST_S)
        if patience <= 0:
            raise TimeoutError("no time left")
        return patience


class _KernelLimit:
    """How long a call may wait at most for what it does not find there.

    Args:
        option: Which of the socket's limits.
    """

    def __init__(self, option: int) -> None:
        self._option = option
        self._seconds = 0.0

    def at_most(self, sock: socket.socket, seconds: float) -> None:
        """Sets it, if it is not near enough."""
        if _CLOSE_ENOUGH * seconds < self._seconds <= seconds:
            return
        # Well within both bounds, so that the next exchange need not set it again.
        self._seconds = max(_SHORTEST_S, (1 + _CLOSE_ENOUGH) / 2 * seconds)
        whole = int(self._seconds)
        packed = struct.pack("@ll", whole, int((self._seconds - whole) * 1e6))
        sock.setsockopt(socket.SOL_SOCKET, self._option, packed)


class PlainStream(_Limits):
    """A TCP or Unix socket. Nobody else may set its time limit.

    Args:
        sock: The socket.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(None)
        self._sock = sock
        self._unix = sock.family == socket.AF_UNIX
        self._to_send = _KernelLimit(socket.SO_SNDTIMEO)
        self._to_receive = _KernelLimit(socket.SO_RCVTIMEO)
        self._readable, self._writable = select.poll(), select.poll()
        self._readable.register(sock, select.POLLIN)
        self._writable.register(sock, select.POLLOUT)

    def _wait(self, events: select.poll) -> None:
        """Until something can be sent or received at once."""
        # A call must not wait for its first byte by the limit that the kernel keeps: Python repeats
        # it after each signal, with all of its time.
        if not events.poll(self._patience() * 1000):
            raise TimeoutError("nothing came or went in time")

    def send(self, chunks: Sequence[Any]) -> None:
        """See `ByteStream.send`."""
        left = _joined_if_short(chunks)
        self._patience()
        while left:
            sent = self._send_some(left[:_MOST_BUFFERS])
            done = 0
            while done < len(left) and sent >= len(left[done]):
                sent -= len(left[done])
                done += 1
            del left[:done]
            if sent:
                left[0] = memoryview(left[0])[sent:]

    def _send_some(self, buffers: Sequence[Any]) -> int:
        if len(buffers) == 1 and len(buffers[0]) <= _SHORT:
            try:
                return self._sock.send(buffers[0], socket.MSG_DONTWAIT)
            except BlockingIOError:
                pass
        self._wait(self._writable)
        # In one call, which gives the interpreter back once: beside a thread that is busy with
        # Python, each of many would wait for its turn.
        patience = self._patience()
        if self._unix:
            # The kernel gives the limit to each piece that it sends, not to all of them.
            pieces = max(1, min(_MOST_PIECES, int(patience / _SHORTEST_S / 2)))
            patience /= pieces
            buffers = _first(buffers, pieces * _PIECE_BYTES)
        self._to_send.at_most(self._sock, patience)
        try:
            return self._sock.sendmsg(buffers)
        except BlockingIOError:
            return 0  # The next wait knows whether there is time left.

    def receive(self, view: memoryview) -> int:
        """See `ByteStream.receive`."""
        self._wait(self._readable)
        return _some(self._sock.recv_into(view, 0, socket.MSG_DONTWAIT))

    def fill(self, view: memoryview) -> None:
        """See `ByteStream.fill`."""
        while len(view):
            self._wait(self._readable)
            self._to_receive.at_most(self._sock, self._patience())
            # As a byte is there, a signal ends it with what came until then.
            view = view[_some(self._sock.recv_into(view, 0, socket.MSG_WAITALL)) :]

    def is_quiet(self) -> bool:
        """See `ByteStream.is_quiet`."""
        return not self._readable.poll(0)

    def receive_now(self, view: memoryview) -> int:
        """See `ByteStream.receive_now`."""
        if self.is_quiet():
            return 0
        return _some(self._sock.recv_into(view, 0, socket.MSG_DONTWAIT))


class TlsStream(_Limits):
    """A TLS socket. Nobody else may set its time limit.

    Args:
        sock: The socket.
    """

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self._sock = sock

    def send(self, chunks: Sequence[Any]) -> None:
        """See `ByteStream.send`."""
        for part in parts(_joined_if_short(chunks)):
            self._sock.settimeout(self._patience())
            self._sock.sendall(part)

    def receive(self, view: memoryview) -> int:
        """See `ByteStream.receive`."""
        self._sock.settimeout(self._patience())
        return _some(self._sock.recv_into(view))

    def fill(self, view: memoryview) -> None:
        """See `ByteStream.fill`."""
        while len(view):
            view = view[self.receive(view) :]

    def is_quiet(self) -> bool:
        """See `ByteStream.is_quiet`: only a look inside of TLS can tell."""
        return False

    def receive_now(self, view: memoryview) -> int:
        """See `ByteStream.receive_now`."""
        self._sock.settimeout(0.0)
        try:
            return _some(self._sock.recv_into(view))
        except ssl.SSLWantReadError:
            return 0  # Nothing, or something of TLS itself.


def _joined_if_short(chunks: Sequence[Any]) -> list[Any]:
    """A few bytes in one piece: in one call, and in one record of TLS."""
    return [b"".join(chunks)] if sum(map(len, chunks)) <= _SHORT else list(chunks)


def _first(buffers: Sequence[Any], size: int) -> Sequence[Any]:
    """As many of the buffers as have so many bytes, the last one cut."""
    for index, buffer in enumerate(buffers):
        if size < len(buffer):
            return [*buffers[:index], memoryview(buffer)[:size]] if size else buffers[:index]
        size -= len(buffer)
    return buffers


def _some(count: int) -> int:
    if count == 0:
        raise ConnectionError("Connection closed by server.")
    return count
