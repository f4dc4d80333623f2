"""Connections that read no longer than until a deadline, and no more than an allowance.

A socket's own timeout begins anew with every byte: a server that sends one now and then could hold
a `sample()` for ever. And redis-py reads whatever comes.
"""

from __future__ import annotations

import time
from functools import cache
from typing import Any

from redis_state_sync.frames import Frames

# Replies to AUTH, HELLO, SELECT; of a sentinel, to SENTINEL MASTERS.
GREETING_BYTES = 1 << 20


class GuardedSocket:
    """Wraps a connected socket; what is not about reading goes to it as it is.

    Args:
        sock: The socket, TLS or not.
        seconds: How long all reading may take until `allow` is called. None: for ever.
    """

    line: Any = None
    """Who reads from the bare socket instead, if anyone does."""

    def __init__(self, sock: Any, seconds: float | None) -> None:
        self._sock = sock
        self._frames = Frames(GREETING_BYTES)
        self._deadline = None if seconds is None else time.monotonic() + seconds
        self._stall: float | None = None
        # (fakeredis' sockets never wait and have no such limit.)
        self._settimeout = getattr(sock, "settimeout", None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    @property
    def bare(self) -> Any:
        """The socket itself, on which nothing is bounded."""
        return self._sock

    def allow(self, deadline: float, stall: float | None, size: int) -> None:
        """Begins an exchange.

        Args:
            deadline: A `time.monotonic()` time after which nothing is read.
            stall: Seconds without a byte after which it is given up.
            size: Most bytes to read.

        Raises:
            TimeoutError: If there is no time left.
        """
        self._deadline = deadline
        self._stall = stall
        self._frames.allowance = size
        self.be_patient()

    def recv_into(self, buffer: Any, *args: Any) -> int:
        """As a socket's.

        Raises:
            TimeoutError: If nothing comes in time.
            ReplyTooLargeError: If too much comes, or is announced.
        """
        self.be_patient()
        count: int = self._sock.recv_into(buffer, *args)
        self._frames.saw(memoryview(buffer)[:count])
        return count

    def recv(self, size: int, flags: int = 0) -> bytes:
        """As a socket's; see `recv_into`."""
        self.be_patient()
        data: bytes = self._sock.recv(size, flags)
        if not flags:  # Peeking takes nothing.
            self._frames.saw(memoryview(data))
        return data

    def be_patient(self) -> None:
        """Bounds the next operation.

        Raises:
            TimeoutError: If there is no time left.
        """
        if self._deadline is None:
            return
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("no time left")
        if self._settimeout is not None:
            self._settimeout(left if self._stall is None else min(left, self._stall))


class _Guarded:
    socket_timeout: float | None

    def _connect(self) -> GuardedSocket:
        return GuardedSocket(super()._connect(), self.socket_timeout)  # type: ignore[misc]


def guarded(connection_class: Any) -> Any:
    """The same class of redis-py connections, with a guard on its sockets.

    What is no class makes connections in a way of its own, and guards them itself.
    """
    return _guarded(connection_class) if isinstance(connection_class, type) else connection_class


@cache
def _guarded(connection_class: type[Any]) -> type[Any]:
    return type(f"Guarded{connection_class.__name__}", (_Guarded, connection_class), {})


def allow(connection: Any, deadline: float, stall: float | None, size: int) -> None:
    """Begins an exchange on a guarded connection; see `GuardedSocket.allow`."""
    connection._sock.allow(deadline, stall, size)


def be_patient(connection: Any) -> None:
    """Bounds the next operation on a guarded connection; see `GuardedSocket.be_patient`."""
    connection._sock.be_patient()
