"""Both ways to talk over a connection do the same, and neither goes on behind an error."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from redis_state_sync import errors, line, open_store
from redis_state_sync.keys import Keys
from redis_state_sync.line import RedisPyLine, SocketLine
from redis_state_sync.redis_store import RedisStore
from redis_state_sync.resp import pack, pack_again
from redis_state_sync.store import Store
from redis_state_sync.testing import EmbeddedServer
from redis_state_sync.version import Version
from tests.unit.forking import in_child
from tests.unit.peers import Handler, answering, peer, saying
from tests.unit.resp_values import bulk
from tests.unit.sockets import signals
from tests.unit.states import WAIT

KEYS = Keys("n")
NOW = b"*2\r\n$1\r\n7\r\n$1\r\n0\r\n"
LARGE = bytes(range(256)) * 2000


@pytest.fixture(params=["socket", "redis-py"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How the test's stores talk."""
    if request.param == "redis-py":
        monkeypatch.setattr(line, "byte_stream", lambda sock: None)
    return str(request.param)


def connection_of(store: Store) -> Any:
    assert isinstance(store, RedisStore)
    return store._exchange._connector.idle


def test_which_line(way: str) -> None:
    """A real socket is read without redis-py, unless that is turned off."""
    with peer(saying(NOW)) as url:
        store = open_store(url)
        assert store.time_ms(timeout=WAIT) == 7000
        kinds = {"socket": SocketLine, "redis-py": RedisPyLine}
        assert type(line.line_over(connection_of(store))) is kinds[way]
        store.close()


REFUSALS: dict[str, tuple[bytes, type[Exception], str]] = {
    "loading": (b"-LOADING Redis is loading the dataset in memory\r\n",
                errors.StoreLoadingError, "LOADING .*still loading"),
    "no password": (b"-NOAUTH Authentication required.\r\n", errors.StoreAuthError, "password"),
    "replica": (b"-READONLY You can't write against a read only replica.\r\n",
                errors.StoreReadOnlyError, "this is a replica"),
    "no right": (b"-NOPERM No permissions to run\r\n", errors.StorePermissionError, "NOPERM"),
    "full": (b"-ERR max number of clients reached\r\n", errors.StoreUnavailableError, "maxclients"),
    "node": (b"-MOVED 5798 127.0.0.1:7001\r\n", errors.StoreError, "redis\\+cluster://"),
    "odd": (b"-SOMETHING new\r\n", errors.StoreError, "SOMETHING new"),
    "no text": (b"-\r\n", errors.StoreError, "refused"),
    "no address": (b"-MOVED x\r\n", errors.StoreReplyError, "no valid reply"),
    "no port": (b"-MOVED 1 h:p\r\n", errors.StoreReplyError, "no valid reply"),
}  # fmt: skip


class Script:
    """Says its replies one after the other, whatever the connection; then the last one for ever."""

    def __init__(self, *replies: bytes) -> None:
        self.connections = 0
        self._replies = list(replies)

    def __call__(self, connection: socket.socket) -> None:
        self.connections += 1
        while connection.recv(65536):
            connection.sendall(self._replies.pop(0) if len(self._replies) > 1 else self._replies[0])


@pytest.mark.parametrize("before", [[], [NOW]], ids=["first", "later"])
@pytest.mark.parametrize(("reply", "kind", "says"), REFUSALS.values(), ids=REFUSALS)
def test_refusals(
    way: str, reply: bytes, kind: type[Exception], says: str, before: list[bytes]
) -> None:
    """Each error reply is the same error, on a connection's first exchange and on later ones."""
    with peer(Script(*before, reply)) as url:
        store = open_store(url)
        for _ in before:
            store.time_ms(timeout=WAIT)
        with pytest.raises(errors.StoreError, match=f"(?s)127.0.0.1.*{says}") as caught:
            store.time_ms(timeout=WAIT)
        assert type(caught.value) is kind
        store.close()


@pytest.mark.parametrize("name", REFUSALS)
def test_what_a_refusal_does_to_the_connection(way: str, name: str) -> None:
    """One that says that a connection is of no use is followed by a new one, an orderly one not."""
    reply, *_ = REFUSALS[name]
    script = Script(NOW, reply, NOW)
    again = name in ("loading", "no password", "full")
    with peer(script) as url:
        store = open_store(url)
        store.time_ms(timeout=WAIT)
        if again:  # It may be another server's by now: the new one is asked at once.
            assert store.time_ms(timeout=WAIT) == 7000
        else:
            with pytest.raises(errors.StoreError):
                store.time_ms(timeout=WAIT)
        assert store.time_ms(timeout=WAIT) == 7000
        store.close()
    given_up = again or name in ("replica", "no address", "no port")
    assert script.connections == (2 if given_up else 1)


def halfway(connection: socket.socket) -> None:
    """Begins a large value, and says no more."""
    connection.recv(65536)
    connection.sendall(b"$%d\r\n%b" % (len(LARGE), LARGE[:300_000]))
    connection.recv(65536)


def hanging_up(connection: socket.socket) -> None:
    """Ends in the middle of a large value."""
    connection.recv(65536)
    connection.sendall(b"$%d\r\n%b" % (len(LARGE), LARGE[:300_000]))


def too_long(connection: socket.socket) -> None:
    """A value with more behind it than its end."""
    connection.recv(65536)
    connection.sendall(b"$%d\r\n%bxyz\r\n" % (len(LARGE), LARGE))
    connection.recv(65536)


def much_too_long(connection: socket.socket) -> None:
    """A second value that nobody can have asked for."""
    connection.recv(65536)
    connection.sendall(bulk(LARGE) + b"$%d\r\n" % (1 << 30))
    connection.recv(65536)


@pytest.mark.parametrize("fault", [halfway, too_long, much_too_long])
def test_a_connection_that_is_given_up_is_closed(fault: Handler, way: str) -> None:
    """The server learns of it at once, also if the error is kept."""
    ended = threading.Event()

    def handler(connection: socket.socket) -> None:
        try:
            fault(connection)
        finally:
            ended.set()

    with peer(handler) as url:
        store = open_store(url, stall_timeout_s=0.1)
        with pytest.raises(errors.StoreError) as caught:
            store.get_blobs(KEYS, ["a", "b"], timeout=WAIT, limit=2 * len(LARGE))
        assert ended.wait(WAIT)
        assert caught.value
        store.close()


@pytest.mark.parametrize("fault", [halfway, hanging_up, too_long, much_too_long])
def test_an_error_in_the_middle_of_a_large_value(fault: Handler, way: str) -> None:
    """The connection is given up; the next call has a new one, and gets the whole value."""
    connections: list[int] = []

    def handler(connection: socket.socket) -> None:
        connections.append(1)
        (fault if len(connections) == 1 else answering(lambda _: bulk(LARGE)))(connection)

    with peer(handler) as url:
        store = open_store(url, stall_timeout_s=0.1)
        into = [memoryview(bytearray(len(LARGE))) for _ in range(2)]

        def fetch() -> list[Any]:
            return store.get_blobs(KEYS, ["a", "b"], timeout=WAIT, limit=2 * len(LARGE), into=into)

        with pytest.raises(errors.StoreError):
            fetch()
        assert connection_of(store) is None
        found = fetch()
        assert found == [LARGE] * 2
        assert [blob is view for blob, view in zip(found, into, strict=True)] == [
            way == "socket"
        ] * 2
        store.close()
    assert len(connections) == 2


class Stop(BaseException):
    """What a signal's handler raises, as KeyboardInterrupt."""


def test_interrupted_in_the_middle_of_a_large_value(way: str) -> None:
    """After Ctrl-C in the middle of a reply, its rest is nobody's answer."""
    connections: list[int] = []
    begun, ended = threading.Event(), threading.Event()

    def handler(connection: socket.socket) -> None:
        connections.append(1)
        if len(connections) > 1:
            saying(NOW)(connection)
        connection.recv(65536)
        connection.sendall(b"$%d\r\n%b" % (len(LARGE), LARGE[:300_000]))
        begun.set()
        try:
            connection.recv(65536)
        finally:
            ended.set()

    def stop(*_: Any) -> None:
        if begun.is_set() and len(connections) == 1:
            connections.append(0)
            raise Stop

    with peer(handler) as url:
        store = open_store(url, stall_timeout_s=WAIT)
        with signals(stop, 0.01), pytest.raises(Stop) as caught:
            store.get_blobs(KEYS, ["a"], timeout=WAIT)
        assert ended.wait(WAIT)
        assert caught.value is not None
        assert connection_of(store) is None
        assert store.time_ms(timeout=WAIT) == 7000
        store.close()


def test_each_reply_is_told_of_as_it_comes(way: str) -> None:
    """Whoever wants to know is told of each reply at once, of errors and nulls as well."""
    go_on = threading.Semaphore(0)
    replies: list[Any] = []

    def handler(connection: socket.socket) -> None:
        connection.recv(65536)
        for reply in (bulk(b"a"), b"$-1\r\n", b"-ERR x\r\n"):
            connection.sendall(reply)
            assert go_on.acquire(timeout=WAIT)

    def told(reply: Any) -> None:
        replies.append(reply)
        go_on.release()

    with peer(handler) as url:
        store = open_store(url, stall_timeout_s=WAIT)
        with pytest.raises(errors.StoreError, match="refused: x"):
            store.get_blobs(KEYS, ["a", "b", "c"], timeout=WAIT, arrived=told)
        store.close()
    assert replies[:2] == [b"a", None]
    assert len(replies) == 3


@pytest.mark.parametrize("room", [0, len(LARGE) - 1, len(LARGE) + 1])
def test_a_blob_of_another_length_than_its_buffer(way: str, room: int) -> None:
    """It is received all the same, and the buffer is left alone."""
    with peer(saying(bulk(LARGE))) as url:
        store = open_store(url)
        view = memoryview(bytearray(b"-" * room))
        assert store.get_blobs(KEYS, ["a"], timeout=WAIT, into=[view]) == [LARGE]
        assert bytes(view) == b"-" * room
        store.close()


def test_no_reply_that_nobody_asked_for(way: str) -> None:
    """What comes between two exchanges ends the connection: it would be the next one's answer."""
    connections: list[socket.socket] = []

    def handler(connection: socket.socket) -> None:
        connections.append(connection)
        saying(b"*2\r\n$1\r\n%d\r\n$1\r\n0\r\n" % len(connections))(connection)

    with peer(handler) as url:
        store = open_store(url)
        assert store.time_ms(timeout=WAIT) == 1000
        connections[0].sendall(NOW)
        time.sleep(0.05)
        assert store.time_ms(timeout=WAIT) == 2000
        store.close()


def test_commands_that_are_sent_again() -> None:
    """What is remembered of a command is what would be sent for it anew."""
    for arguments in (("XREVRANGE", "k", "+", "-", "COUNT", 16), ("TIME",), ("GET", "ä", b"x")):
        assert pack_again(*arguments) == pack(*arguments)
        assert pack_again(*arguments) is pack_again(*arguments)


def test_threads(way: str, redis_state_server: EmbeddedServer) -> None:
    """Threads that share a store get their own answers, each into its own buffer."""
    store = open_store(redis_state_server.url)
    blobs = {f"{n:032x}": bytes([n]) * 300_000 for n in range(3)}
    store.put_blobs(KEYS, blobs, ttl_s=60, timeout=WAIT)
    wrong: list[str] = []

    def fetch(digest: str) -> None:
        view = memoryview(bytearray(300_000))
        for _ in range(30):
            (blob,) = store.get_blobs(KEYS, [digest], timeout=WAIT, into=[view])
            if blob != blobs[digest] or (blob is view) != (way == "socket"):
                wrong.append(digest)

    threads = [threading.Thread(target=fetch, args=(digest,)) for digest in blobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
        assert not thread.is_alive()
    assert wrong == []
    store.close()


# Forking with threads is what is under test.
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_fork(way: str, redis_state_server: EmbeddedServer) -> None:
    """Parent and child fetch on side by side; neither reads a byte of the other's."""
    store = open_store(redis_state_server.url)
    blobs = {f"{n:032x}": bytes([n]) * 300_000 for n in range(2)}
    store.put_blobs(KEYS, blobs, ttl_s=60, timeout=WAIT)

    def fetch(digest: str) -> None:
        view = memoryview(bytearray(300_000))
        for _ in range(50):
            assert store.get_blobs(KEYS, [digest], timeout=WAIT, into=[view]) == [blobs[digest]]

    mine, childs = blobs
    fetch(mine)
    connection = connection_of(store)
    parent = threading.Thread(target=fetch, args=(mine,))
    parent.start()
    assert in_child(lambda: fetch(childs)) == 0
    parent.join(WAIT)
    fetch(mine)
    assert connection_of(store) is connection
    store.close()


def versions_of(count: int) -> bytes:
    entry = b"*2\r\n" + bulk(b"1-1") + b"*2\r\n" + bulk(b"manifest") + bulk(b"m")
    return b"*%d\r\n" % count + entry * count


@pytest.mark.parametrize("ask", [lambda s: s.newest(KEYS, timeout=WAIT, tracked=True)])
def test_a_reply_after_a_retry(way: str, ask: Callable[[Store], Any]) -> None:
    """A connection that ended meanwhile is replaced once, also for what is to be tracked."""
    commands: list[bytes] = []

    def reply(command: list[bytes]) -> bytes:
        commands.append(command[0])
        return b"" if len(commands) == 2 else versions_of(1)

    with peer(answering(reply)) as url:
        store = open_store(url)
        for _ in range(2):
            assert ask(store)[0].version == Version(1, 1)
        store.close()
    assert commands == [b"XREVRANGE"] * 3
