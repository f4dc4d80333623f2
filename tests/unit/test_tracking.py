"""What is asked of a server that can track, and what a server that can not is spared."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import fakeredis
import pytest

from redis_state_sync import line, open_store
from redis_state_sync.events import Failed
from redis_state_sync.keys import Keys
from redis_state_sync.redis_store import RedisStore
from redis_state_sync.store import Store
from tests.unit.peers import answering, peer
from tests.unit.sockets import beside, signals
from tests.unit.states import WAIT, Reader

KEYS = Keys("n")
HELLO = b"%1\r\n+proto\r\n:3\r\n"
PUSH = b">2\r\n$10\r\ninvalidate\r\n*1\r\n$3\r\nkey\r\n"
MUCH_TOO_LONG = 5.0


class Tracking:
    """A server without versions, that tracks.

    Args:
        replies: What it answers to some commands in place of what is usual.
    """

    def __init__(self, **replies: bytes) -> None:
        self.commands: list[str] = []
        self.connections: list[socket.socket] = []
        self._replies = {
            "HELLO": HELLO, "TRACKING": b"+OK\r\n", "CACHING": b"+OK\r\n", "XREVRANGE": b"*0\r\n",
            "TIME": b"*2\r\n$1\r\n7\r\n$1\r\n0\r\n", **replies,
        }  # fmt: skip

    def __call__(self, connection: socket.socket) -> None:
        self.connections.append(connection)
        answering(self._reply)(connection)

    def _reply(self, command: list[bytes]) -> bytes:
        name = command[command[0] == b"CLIENT"].decode()
        self.commands.append(name)
        return self._replies[name]

    @contextmanager
    def store(self, options: str = "?protocol=3") -> Iterator[Store]:
        """A handle on it."""
        with peer(self) as url:
            store = open_store(f"{url}{options}")
            yield store
            store.close()

    def say(self, text: bytes) -> None:
        """On the connection that came last, unasked; it has arrived when this returns."""
        self.connections[-1].sendall(text)
        time.sleep(0.02)


def ask(store: Store) -> list[Any]:
    return store.newest(KEYS, timeout=WAIT, tracked=True)


TRACKED = ["CACHING", "XREVRANGE"]


def test_what_is_sent() -> None:
    """Tracking is turned on once for a connection, and for no read that does not ask for it."""
    server = Tracking()
    with server.store() as store:
        store.newest(KEYS, timeout=WAIT)
        assert store.mark() is None
        ask(store)
        first = store.mark()
        assert first is not None
        ask(store)
        assert store.mark() == first
        store.newest(KEYS, timeout=WAIT)
        assert store.mark() == first
    assert server.commands == ["HELLO", "XREVRANGE", "TRACKING", *TRACKED, *TRACKED, "XREVRANGE"]


def test_a_message_changes_the_mark() -> None:
    """Each message does, read at whatever time, and nothing else."""
    server = Tracking()
    with server.store() as store:
        ask(store)
        seen = [store.mark()]
        server.say(PUSH)
        seen.append(store.mark())
        server.say(PUSH + PUSH)
        seen.append(store.mark())
        server.say(b">2\r\n$10\r\ninvalidate\r\n_\r\n")
        ask(store)  # It reads the message before its reply.
        seen.append(store.mark())
        assert store.mark() == seen[-1]
        assert len(set(seen)) == 4
    assert len(server.connections) == 1


def test_messages_before_behind_and_between_replies() -> None:
    """A message is never taken for a reply, wherever it comes."""
    server = Tracking(CACHING=PUSH + b"+OK\r\n" + PUSH, XREVRANGE=PUSH + b"*0\r\n" + PUSH)
    with server.store() as store:
        for _ in range(3):
            assert ask(store) == []
            time.sleep(0.02)
            assert store.mark() is not None
        assert store.time_ms(timeout=WAIT) == 7000
    assert len(server.connections) == 1


def test_another_connection_is_another_mark() -> None:
    """What was read on a connection that is gone is tracked by nobody."""
    server = Tracking()
    with server.store() as store:
        ask(store)
        first = store.mark()
        store.close()
        assert store.mark() is None
        ask(store)
        assert store.mark() not in (None, first)


@pytest.mark.parametrize("refused", ["TRACKING", "CACHING"])
def test_a_server_that_does_not_let_us(refused: str, caplog: pytest.LogCaptureFixture) -> None:
    """It is asked for it once on each connection, and polled as if nothing had been wanted."""
    caplog.set_level(logging.DEBUG, "redis_state_sync")
    server = Tracking(**{refused: b"-NOPERM User has no permissions to run 'client|x'\r\n"})
    with server.store() as store:
        reader = Reader(store, tracking=True)
        for _ in range(3):
            assert ask(store) == []
            assert store.mark() is None
            assert reader.subscriber.refresh(lambda snapshot: None) is None
        assert reader.seen(Failed) == []
    once = ["TRACKING"] if refused == "TRACKING" else ["TRACKING", "CACHING"]
    assert server.commands == ["HELLO", *once, *["XREVRANGE"] * 6]
    assert caplog.records == []


def test_a_right_that_is_lost() -> None:
    """Once the server no longer tracks, what was marked before is of no worth."""
    server = Tracking()
    with server.store() as store:
        ask(store)
        assert store.mark() is not None
        server._replies["CACHING"] = b"-ERR CLIENT CACHING YES is only valid when tracking\r\n"
        assert ask(store) == []
        assert store.mark() is None


@pytest.mark.parametrize("how", ["RESP2", "redis-py", "cluster"])
def test_where_nothing_can_be_tracked(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By RESP2, by redis-py's own means and in a cluster, every poll is a plain one."""
    if how == "redis-py":
        monkeypatch.setattr(line, "byte_stream", lambda sock: None)
    server = Tracking()
    with peer(server) as url:
        scheme = "redis+cluster" if how == "cluster" else "redis"
        store = open_store(
            f"{url.replace('redis', scheme, 1)}?protocol={2 if how[0] == 'R' else 3}"
        )
        for _ in range(3):
            assert ask(store) == []
            assert store.mark() is None
        store.close()
    assert [c for c in server.commands if c != "HELLO"] == ["XREVRANGE"] * 3


def test_fakeredis() -> None:
    """It is polled as ever."""
    store = RedisStore.from_client(fakeredis.FakeRedis(protocol=3))
    reader = Reader(store, tracking=True)
    for _ in range(3):
        assert reader.subscriber.refresh(lambda snapshot: None) is None
        assert store.mark() is None


@pytest.mark.parametrize(
    "said",
    [PUSH[:9], b"*0\r\n", b"+OK\r\n", b">1\r\n?\r\n", b">200000\r\n", PUSH * 100_000],
    ids=["half a message", "a reply", "a status", "no message", "too many parts", "endless"],
)
def test_what_is_no_message(said: bytes) -> None:
    """The connection is given up at once, without a word; the next poll has a new one."""
    server = Tracking()
    with server.store() as store:
        ask(store)
        with beside(lambda: server.connections[0].sendall(said)):
            time.sleep(0.05)
            started = time.monotonic()
            while store.mark() is not None:  # As much as is allowed of the endless is taken.
                assert time.monotonic() - started < MUCH_TOO_LONG
            assert time.monotonic() - started < MUCH_TOO_LONG
            assert ask(store) == []
            assert store.mark() is not None
    assert len(server.connections) == 2


def test_a_connection_that_ended() -> None:
    """The end of a connection is noticed by the next look, and is no error of it."""
    server = Tracking()
    with server.store() as store:
        ask(store)
        assert store.mark() is not None
        server.connections[0].shutdown(socket.SHUT_RDWR)
        deadline = time.monotonic() + MUCH_TOO_LONG
        while store.mark() is not None and time.monotonic() < deadline:
            time.sleep(0.001)
        assert store.mark() is None
        assert ask(store) == []


class Stop(BaseException):
    """What a signal's handler raises, as KeyboardInterrupt."""


def test_interrupted_in_the_middle_of_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of a message whose beginning was read is not taken for a reply."""
    monkeypatch.setattr("redis_state_sync.tracking.MESSAGE_S", WAIT)

    def stop(*_: Any) -> None:
        raise Stop

    server = Tracking()
    with server.store() as store:
        ask(store)
        server.say(PUSH[:-9])  # Up to the end of a line.
        with pytest.raises(Stop), signals(stop, 0.05):
            store.mark()
        assert store.mark() is None
        assert store.time_ms(timeout=WAIT) == 7000
    assert len(server.connections) == 2


def test_a_look_does_not_wait_for_another_thread() -> None:
    """While a store is busy, nothing is known; nobody waits to learn more."""
    server = Tracking()
    with server.store() as store:
        ask(store)
        assert isinstance(store, RedisStore)
        with store._exchange._lock:
            started = time.monotonic()
            assert store.mark() is None
            assert time.monotonic() - started < MUCH_TOO_LONG
        assert store.mark() is not None


def test_a_subscriber_that_need_not_ask() -> None:
    """Between two looks a second apart, nothing is sent; each look is one question."""
    server = Tracking()
    with server.store() as store:
        reader = Reader(store, tracking=True)
        for _ in range(3):
            reader.subscriber.refresh(reader.applied.append)
        asked = len(server.commands)
        for tenth in range(1, 31):
            reader.clock.now = 1000.0 + tenth / 10
            for _ in range(5):
                reader.subscriber.refresh(reader.applied.append)
        # An empty namespace is tracked anew with each of them.
        assert server.commands[asked:] == TRACKED * 3


def test_without_tracking_every_refresh_asks() -> None:
    """A subscriber that does not want it sends what it always sent."""
    server = Tracking()
    with server.store() as store:
        reader = Reader(store)
        for _ in range(5):
            reader.subscriber.refresh(reader.applied.append)
        assert server.commands == ["HELLO", *["XREVRANGE"] * 5]
        assert store.mark() is None
