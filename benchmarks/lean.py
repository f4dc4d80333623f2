"""Clients that cost next to nothing: bare connections that send our poll, byte by byte.

With real clients two cores are busy in Python long before the server is; so what the server can
carry is found with these. They are simulated: nothing is applied, and no version is remembered.
"""

from __future__ import annotations

import select
import time
from typing import Any

from benchmarks.limits import Address, connect
from benchmarks.loops import WARM_UP
from redis_state_sync.keys import Keys
from redis_state_sync.poller import Poller
from redis_state_sync.records import Records
from redis_state_sync.redis_store import RedisStore
from redis_state_sync.resp import pack
from redis_state_sync.version import Version

NOTHING = b"*0\r\n"


class _Recorder:
    """Stands in for a store's connection, and keeps what it is given to send."""

    def __init__(self) -> None:
        self.sent = b""

    def run(self, operation: str, commands: Any, timeout: float, **limits: Any) -> list[Any]:
        """Takes note of the bytes; the answer is that there is nothing."""
        self.sent += b"".join(bytes(c) for command in commands for c in pack(*command))
        return [[] for _ in commands]


def poll_bytes(namespace: str, held: Version) -> tuple[bytes, bytes]:
    """What a reader that holds a version sends: its poll, and its look at the top each second.

    Taken from the package's own code, so that it follows every change there.
    """
    keys = Keys(namespace)
    now = [0.0]
    store = RedisStore(lambda: None, "nowhere")  # type: ignore[arg-type,return-value]
    recorder = _Recorder()
    store._exchange = recorder  # type: ignore[assignment]
    poller = Poller(store, keys, Records(keys, None), None, lambda: now[0])
    poller.deal_with(held)
    poller.ask(1.0)
    poll, recorder.sent = recorder.sent, b""
    now[0] = 1e9
    poller.ask(1.0)
    return poll, recorder.sent


class LeanPollers:
    """Several connections in one process, each of which polls in a closed loop.

    Args:
        address: Of our server.
        poll: What to send.
        connections: How many.
    """

    def __init__(self, address: Address, poll: bytes, connections: int) -> None:
        self._poll = poll
        self._sockets = {c.fileno(): c for c in (connect(address) for _ in range(connections))}
        self._epoll = select.epoll()
        for number in self._sockets:
            self._epoll.register(number, select.EPOLLIN)

    def rate(self, seconds: float) -> float:
        """Polls that were answered per second, by all connections together."""
        sockets, command, epoll = self._sockets, self._poll, self._epoll
        for connection in sockets.values():
            connection.send(command)
        answered, warm = 0, WARM_UP * len(sockets)
        started = end = 0.0
        while True:
            for number, _ in epoll.poll():
                connection = sockets[number]
                if connection.recv(4096) != NOTHING:
                    raise RuntimeError("the poll was to find nothing new")
                connection.send(command)
                answered += 1
            now = time.perf_counter()
            if not started and answered >= warm:
                started, end, answered = now, now + seconds, 0
            elif started and now >= end:
                break
        # Those that are still under way, so that the next turn begins with none.
        for connection in sockets.values():
            connection.recv(4096)
        return answered / (now - started)
