"""A server that tracks what was read, and connections on which nothing arrives unless it is let.

https://redis.io/docs/latest/develop/reference/client-side-caching/ , OPTIN, without NOLOOP.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import hiredis
import redis

from redis_state_sync.guarded import GuardedSocket
from redis_state_sync.line import SocketLine
from redis_state_sync.redis_store import RedisStore
from redis_state_sync.version import Version
from tests.unit.resp_values import bulk

parse_error = type(redis.Connection()._parser).parse_error


class Wire:
    """What a server sent on one connection, and how much of it has arrived. A stream, too."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.sent = b""
        self.arrived = self.taken = 0
        self.ended = self.seen_end = False
        self.pushes: list[tuple[bytes | None, int]] = []
        """Each message's key, None for all keys, and where it ends."""
        self.tracking = self.caching = False
        self._commands = hiredis.Reader()

    def push(self, key: bytes | None) -> None:
        """Something that was tracked has changed."""
        keys = b"_\r\n" if key is None else b"*1\r\n" + bulk(key)
        self.sent += b">2\r\n" + bulk(b"invalidate") + keys
        self.pushes.append((key, len(self.sent)))

    def under_way(self, key: bytes) -> bool:
        """Whether a message about a key, or the connection's end, is still to arrive."""
        ends = [end for k, end in self.pushes if k in (key, None)]
        return any(end > self.arrived for end in ends) or (self.ended and not self.seen_end)

    def begin(self, deadline: float, stall: float | None) -> None:
        """There is time enough, or none."""

    def send(self, chunks: Sequence[Any]) -> None:
        """The server does what it is told at once; its replies arrive when they are waited for."""
        if self.ended:
            raise ConnectionError("broken pipe")
        self._commands.feed(b"".join(chunks))
        while command := self._commands.gets():
            # A message about what the command itself changes comes before the reply.
            reply = self.server.do(self, [part.upper() for part in command[:2]], command)
            self.sent += reply

    def receive(self, view: memoryview) -> int:
        """Takes what arrived, or waits for the next few bytes."""
        if self.arrived == self.taken:
            if self.server.mute:
                raise TimeoutError("nothing came")
            self.arrived = min(len(self.sent), self.taken + self.server.burst)
        return self.receive_now(view) or self._nothing()

    def _nothing(self) -> int:
        self.seen_end = self.ended
        raise ConnectionError("the end") if self.ended else TimeoutError("nothing came")

    def fill(self, view: memoryview) -> None:
        """As often as it takes."""
        while len(view):
            view = view[self.receive(view) :]

    def receive_now(self, view: memoryview) -> int:
        """Takes what arrived."""
        data = self.sent[self.taken : min(self.arrived, self.taken + len(view))]
        view[: len(data)] = data
        self.taken += len(data)
        if not data and self.seen_end:
            raise ConnectionError("the end")
        return len(data)

    def deliver(self, count: int) -> None:
        """So many bytes more arrive; behind the last one, the end."""
        self.arrived = min(len(self.sent), self.arrived + count)
        self.seen_end = self.ended and self.arrived == len(self.sent)


class Server:
    """Streams of versions, and who is to be told of changes."""

    def __init__(self) -> None:
        self.versions: dict[bytes, list[tuple[Version, bytes]]] = {}
        self.table: dict[bytes, set[Wire]] = {}
        self.wires: list[Wire] = []
        self.burst = 1 << 16
        self.mute = False
        self.may_track = True
        self.around: list[Callable[[], None]] = []
        """What happens just before and just behind the next command that reads."""
        self.asked = 0

    def do(self, wire: Wire, name: list[bytes], command: list[bytes]) -> bytes:
        """Does a command; its reply."""
        if name == [b"CLIENT", b"TRACKING"]:
            wire.tracking = self.may_track
            return b"+OK\r\n" if self.may_track else b"-NOPERM no\r\n"
        if name == [b"CLIENT", b"CACHING"]:
            wire.caching = self.may_track and wire.tracking
            return b"+OK\r\n" if wire.caching else b"-NOPERM no\r\n"
        caching, wire.caching = wire.caching, False
        if name[0] == b"XREVRANGE":
            self.asked += 1
            return self._read(wire, command, caching)
        if name[0] == b"XADD":
            self.add(command[1], Version.parse(command[2]), command[4])
            return bulk(command[2])
        assert name[0] == b"EXPIRE"
        self.changed(command[1])
        return b":1\r\n"

    def _read(self, wire: Wire, command: list[bytes], caching: bool) -> bytes:
        if len(self.around) == 2:
            self.around.pop(0)()
        key, start = command[1], Version(0, 0) if command[3] == b"-" else Version.parse(command[3])
        if caching:
            self.table.setdefault(key, set()).add(wire)
        found = [e for e in reversed(self.versions.get(key, [])) if e[0] >= start]
        found = found[: int(command[5])]
        reply = b"*%d\r\n" % len(found) + b"".join(
            b"*2\r\n" + bulk(str(v).encode()) + b"*2\r\n" + bulk(b"manifest") + bulk(m)
            for v, m in found
        )
        if self.around:
            # Its own reply is on its way before.
            wire.sent, reply = wire.sent + reply, b""
            self.around.pop(0)()
        return reply

    def add(self, key: bytes, version: Version, manifest: bytes) -> None:
        """A learner publishes."""
        self.versions.setdefault(key, []).append((version, manifest))
        self.changed(key)

    def changed(self, key: bytes) -> None:
        """Tells whoever read the key. So does a server that has no room to remember it."""
        for wire in self.table.pop(key, set()):
            wire.push(key)

    def flush(self) -> None:
        """Everything goes, and everyone who tracks is told."""
        self.versions.clear()
        self.table.clear()
        for wire in self.wires:
            if wire.tracking:
                wire.push(None)

    def hang_up(self, wire: Wire) -> None:
        """Ends a connection, and forgets what was read on it."""
        wire.ended = True
        self.wires = [other for other in self.wires if other is not wire]
        for readers in self.table.values():
            readers.discard(wire)


class _Connection:
    """Looks like one of redis-py's that is connected by RESP3."""

    def __init__(self, server: Server) -> None:
        self._wire = Wire(server)
        server.wires.append(self._wire)
        self._sock: Any = GuardedSocket(None, None)
        self._sock.line = SocketLine(self._wire, parse_error, resp3=True)

    def connect(self) -> None:
        """It is."""

    def disconnect(self) -> None:
        """The server learns of it at once."""
        self._wire.server.hang_up(self._wire)
        self._wire.seen_end = True
        self._sock = None


class TrackedStore(RedisStore):
    """A store over such connections. Something may happen behind each look at the mark."""

    def __init__(self, server: Server) -> None:
        pool = SimpleNamespace(connection_class=lambda: _Connection(server), connection_kwargs={})
        super().__init__(lambda: pool, "redis://model")
        self.behind_mark: Callable[[], None] | None = None

    def mark(self) -> Any:
        """As ever."""
        mark = super().mark()
        happens, self.behind_mark = self.behind_mark, None
        if happens is not None:
            happens()
        return mark

    @property
    def wire(self) -> Wire | None:
        """Of the connection that it has."""
        assert not isinstance(self._exchange, tuple)
        connection = self._exchange._connector.idle
        return None if connection is None or connection._sock is None else connection._wire
