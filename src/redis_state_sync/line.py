"""Asking and answering over a connected, authenticated redis-py connection: fast where possible.

Two ways that do the same: over the bare socket, and by redis-py's own means where there is none
(fakeredis) or where it is not ours alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import redis

from redis_state_sync.bare_socket import ByteStream, byte_stream
from redis_state_sync.guarded import GuardedSocket, allow, be_patient
from redis_state_sync.resp import parts
from redis_state_sync.resp_reader import RespReader

Connection = Any
_serials = itertools.count()


class Line(Protocol):
    """One connection. Its errors are redis-py's, the socket's and those of `resp_reader`."""

    can_track: bool
    """Whether the server can say by itself when what was read changes; see `tracking`."""

    def begin(
        self,
        deadline: float,
        stall: float | None,
        allowance: int,
        progress: Callable[[], None] | None = None,
    ) -> None:
        """Begins an exchange.

        Args:
            deadline: A `time.monotonic()` after which nothing is read or written.
            stall: Seconds without a byte after which it is given up earlier.
            allowance: Most bytes that may come.
            progress: Called now and then while a large value comes, if that can be done.
        """
        ...

    def check_quiet(self) -> None:
        """Raises `ConnectionError` if there is something to read although nothing was asked."""
        ...

    def send(self, chunks: Sequence[Any]) -> None:
        """Sends all bytes of some buffers."""
        ...

    def read(self, into: memoryview | None) -> Any:
        """Waits for a reply; an error reply is returned as an exception.

        Args:
            into: Where a value of just this length is to go, if that can be done. It is returned
                then.
        """
        ...


class SocketLine:
    """Over the bare socket.

    Args:
        stream: The socket's. From now on, nobody else may read from it.
        make_error: Makes an exception of the text of an error reply.
        resp3: Whether the server may send what is no reply.
    """

    def __init__(
        self, stream: ByteStream, make_error: Callable[[str], Exception], *, resp3: bool
    ) -> None:
        self.can_track = resp3
        self.tracks = False
        """Whether the server was told to."""
        self.serial = next(_serials)
        """Tells this line from all others of this process."""
        self._stream = stream
        self._reader = RespReader(stream, make_error)
        self.send = stream.send

    @property
    def pushes(self) -> int:
        """How many messages came that are no replies: of what was tracked, something changed."""
        return self._reader.pushes

    def is_quiet(self) -> bool:
        """Whether nothing came that was not read yet, for all that can be told at once."""
        return self._reader.is_quiet()

    def begin(
        self,
        deadline: float,
        stall: float | None,
        allowance: int,
        progress: Callable[[], None] | None = None,
    ) -> None:
        """See `Line`."""
        self._stream.begin(deadline, stall)
        self._reader.begin(allowance, progress)

    def read(self, into: memoryview | None) -> Any:
        """See `Line`. Raises what redis-py takes for the end of a connection: LOADING, NOAUTH."""
        reply = self._reader.read(into)
        if isinstance(reply, redis.ConnectionError):
            raise reply
        return reply

    def check_quiet(self) -> None:
        """See `Line`. Messages that are no replies are welcome."""
        if self._reader.read_pushes():
            raise _unasked()


class RedisPyLine:
    """By redis-py's own means.

    Args:
        connection: A guarded one.
    """

    can_track = False

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def begin(
        self,
        deadline: float,
        stall: float | None,
        allowance: int,
        progress: Callable[[], None] | None = None,
    ) -> None:
        """See `Line`."""
        allow(self._connection, deadline, stall, allowance)

    def check_quiet(self) -> None:
        """See `Line`."""
        if self._connection.can_read(timeout=0):
            raise _unasked()

    def send(self, chunks: Sequence[Any]) -> None:
        """See `Line`."""
        for part in parts(chunks):
            be_patient(self._connection)
            self._connection.send_packed_command([part], check_health=False)

    def read(self, into: memoryview | None = None) -> Any:
        """See `Line`."""
        try:
            return self._connection.read_response(disable_decoding=True)
        except redis.ResponseError as error:
            # An error reply leaves the connection in order. Without its frames: they hold all that
            # was sent and received until the next garbage collection.
            return error.with_traceback(None)


def line_over(connection: Connection) -> Line:
    """The fastest line over a connection on which every reply was read."""
    guard = connection._sock
    if isinstance(guard, GuardedSocket):
        if guard.line is None and not connection.can_read(timeout=0):
            guard.line = _socket_line(guard, connection)
        line: Line | None = guard.line
        if line is not None:
            return line
    return RedisPyLine(connection)


def _socket_line(guard: GuardedSocket, connection: Connection) -> SocketLine | None:
    stream = byte_stream(guard.bare)
    # The class's own: a method of the parser's would keep the connection.
    make_error = type(connection._parser).parse_error
    resp3 = str(connection.protocol) == "3"
    return SocketLine(stream, make_error, resp3=resp3) if stream else None


def _unasked() -> redis.ConnectionError:
    # What is left over would be taken for the reply to the next command, and that one's for the
    # reply to the one after it, for ever.
    return redis.ConnectionError("bytes that nobody asked for")
