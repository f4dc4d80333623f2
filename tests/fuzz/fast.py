"""The reply reader, and every call of a store over it: see `tests.fuzz.targets`."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import redis

from redis_state_sync.errors import StoreError
from redis_state_sync.frames import ReplyTooLargeError
from redis_state_sync.guarded import GuardedSocket
from redis_state_sync.line import SocketLine
from redis_state_sync.redis_store import RedisStore
from redis_state_sync.resp_reader import MalformedReplyError, RespReader
from tests.unit.bounds import peak_memory
from tests.unit.resp_values import Pieces

parse_error = type(redis.Connection()._parser).parse_error
ALLOWANCE = 1 << 16
# The reader's own buffer, a value of the allowance and its copy, and for each byte an element.
MOST_MEMORY, PER_BYTE = 1 << 20, 64


class ViolationError(Exception):
    """A promise was broken."""


def _read(data: bytes, step: int, room: int) -> list[Any]:
    """What is read up to an error, and its kind."""
    reader = RespReader(Pieces(data, range(0, len(data), step)), parse_error)
    reader.begin(1 << 30)
    into = memoryview(bytearray(room))
    found: list[Any] = []
    try:
        while True:
            reply = reader.read(into)
            found.append((bytes(reply) if reply is into else _checked(reply), reader.pushes))
    except (ReplyTooLargeError, MalformedReplyError, ConnectionError) as error:
        found.append((type(error), str(error)))
    return found


def _checked(reply: Any) -> Any:
    if isinstance(reply, dict):
        _checked([*reply, *reply.values()])
    elif isinstance(reply, list):
        for inner in reply:
            _checked(inner)
    elif reply is not None and not isinstance(reply, (bytes, int, float, redis.RedisError)):
        raise ViolationError(f"a {type(reply).__name__} was read")
    return reply


def reader(data: bytes) -> None:
    """Any bytes are values, a clear error or the peer's end, however they are cut."""
    if len(data) < 4:
        return
    step, room, text = data[0] or 1, data[1], data[4:]
    if repr(_read(text, step, room)) != repr(_read(text, len(text) + 1, room)):
        raise ViolationError("cut differently, read differently")
    if zlib.crc32(data) % 32:
        return

    def call() -> None:
        bounded = RespReader(Pieces(text), parse_error)
        bounded.begin(ALLOWANCE)
        try:
            while True:
                bounded.read()
        except (ReplyTooLargeError, MalformedReplyError, ConnectionError):
            pass

    peak, most = peak_memory(call), MOST_MEMORY + 2 * ALLOWANCE + PER_BYTE * len(text)
    if peak > most:
        raise ViolationError(f"{len(text)} bytes took {peak} of memory; allowed are {most}")


class _Connection:
    """Looks like one of redis-py's that is connected, to a server that sends some bytes."""

    def __init__(self, data: bytes, step: int, resp3: bool) -> None:
        self._sock: Any = GuardedSocket(None, None)
        stream = Pieces(data, range(0, len(data), step))
        self._sock.line = SocketLine(stream, parse_error, resp3=resp3)

    def connect(self) -> None: ...

    def disconnect(self) -> None:
        self._sock = None


def calls(names: list[Callable[[RedisStore], Any]]) -> Callable[[bytes], None]:
    """Makes the target: whatever a server sends, calls give a value or a StoreError."""

    def run(data: bytes) -> None:
        if len(data) < 4:
            return
        call, flags, step = names[data[0] % len(names)], data[1], data[2] or 1 << 16

        def connection() -> _Connection:
            return _Connection(data[4:], step, bool(flags & 1))

        pool = SimpleNamespace(connection_class=connection, connection_kwargs={})
        store = RedisStore(lambda: pool, "redis://here")
        started = time.monotonic()
        for _ in range(1 + flags % 3):  # What one leaves, the next one meets.
            try:
                call(store)
            except StoreError:
                pass
            store.mark()
        store.close()
        if time.monotonic() - started > 8:  # The machine is shared.
            raise ViolationError(f"{len(data)} bytes took {time.monotonic() - started:.1f} s")

    return run
