"""Connections: bounded in time, safe to fork, made anew after every fault."""

from __future__ import annotations

import gc
import pickle
import socket
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from redis_state_sync import StateSubscriber, errors, open_store, redis_store
from redis_state_sync.connection import Connector, make_pool
from redis_state_sync.endpoint import parse_url
from redis_state_sync.keys import Keys
from redis_state_sync.memory_store import MemoryStore
from redis_state_sync.testing import EmbeddedServer, FakeStateServer
from redis_state_sync.version import Version
from tests.unit.forking import in_child
from tests.unit.peers import Handler, peer, saying, silent, slamming
from tests.unit.states import WAIT, publishing, state

KEYS = Keys("n")
# Far above what is asked for (0.05 to 0.3 s): the machine is shared.
MUCH_TOO_LONG = 5.0


def seconds_of(call: Callable[[], Any]) -> float:
    started = time.monotonic()
    call()
    return time.monotonic() - started


@pytest.mark.parametrize("protocol", [2, 3])
def test_a_silent_server_costs_the_timeout_and_no_more(protocol: int) -> None:
    """A peer that accepts and never answers is given up within the time allowed: C32, C72, C73."""
    with peer(silent) as url:
        store = open_store(f"{url}?protocol={protocol}")
        for _ in range(3):
            started = time.monotonic()
            with pytest.raises(errors.StoreTimeoutError, match=r"127\.0\.0\.1"):
                store.newest(KEYS, timeout=0.1)
            assert 0.05 < time.monotonic() - started < MUCH_TOO_LONG
        store.close()


def test_a_silent_server_costs_a_subscriber_little() -> None:
    """Twenty refreshes against a hanging server take about one poll, not twenty: C4, C72, C73."""
    with peer(silent) as url:
        subscriber = StateSubscriber(open_store(url), "n", first_timeout_s=0.1)
        took = seconds_of(lambda: [subscriber.refresh(lambda s: None) for _ in range(20)])
        assert took < MUCH_TOO_LONG / 2
        subscriber.close()


def test_a_stalled_transfer_is_given_up_early() -> None:
    """A long transfer without a byte for `stall_timeout_s` ends long before its own limit: C74."""
    with peer(saying(b"$100\r\nabc")) as url:
        store = open_store(url, stall_timeout_s=0.1)
        started = time.monotonic()
        with pytest.raises(errors.StoreTimeoutError):
            store.get_blobs(KEYS, ["0" * 32], timeout=60.0)
        assert time.monotonic() - started < MUCH_TOO_LONG
        store.close()


def test_a_slow_transfer_is_not_given_up() -> None:
    """A transfer may take longer than a poll, and than connecting, as long as bytes arrive: C74."""

    def dripping(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(b"$20\r\n")
        for _ in range(20):
            time.sleep(0.02)
            connection.sendall(b"x")
        connection.sendall(b"\r\n")
        silent(connection)

    with peer(dripping) as url:
        store = open_store(url, connect_timeout_s=0.1, poll_timeout_s=0.05, stall_timeout_s=WAIT)
        assert store.get_blobs(KEYS, ["0" * 32], timeout=WAIT) == [b"x" * 20]
        store.close()


def test_a_slow_upload_is_not_given_up() -> None:
    """An upload may take longer than `stall_timeout_s`, as long as bytes go out."""

    def thirsty(connection: socket.socket) -> None:
        left = 8 << 20
        while left > 0:
            left -= len(connection.recv(256 << 10))
            time.sleep(0.02)
        connection.sendall(b"+OK\r\n:0\r\n")
        silent(connection)

    with peer(thirsty) as url:
        store = open_store(url, stall_timeout_s=0.4)
        blob = np.zeros(8 << 20, np.uint8)
        took = seconds_of(lambda: store.put_blobs(KEYS, {"d": blob}, ttl_s=60, timeout=WAIT))
        assert took > 0.5
        store.close()


@pytest.mark.parametrize(
    ("handler", "expected"),
    [
        (saying(b"HTTP/1.1 400 Bad Request\r\n\r\n"), errors.StoreReplyError),
        (saying(b"SSH-2.0-OpenSSH_9.2\r\n"), errors.StoreReplyError),
        (saying(b"+PONG\r\n"), errors.StoreReplyError),
        (saying(b":5\r\n"), errors.StoreReplyError),
        (saying(b"*1\r\n*2\r\n$3\r\n1-1\r\n*2\r\n$8\r\nmanifest\r\n:1000000000\r\n"),
         errors.StoreReplyError),
        (saying(b"*1\r\n*2\r\n$3\r\n1-x\r\n*2\r\n$8\r\nmanifest\r\n$1\r\nx\r\n"),
         errors.StoreReplyError),
        (saying(b"-LOADING Redis is loading the dataset in memory\r\n"), errors.StoreLoadingError),
        (saying(b"-NOAUTH Authentication required.\r\n"), errors.StoreAuthError),
        (saying(b"-ERR max number of clients reached\r\n"), errors.StoreError),
        (saying(b"-READONLY You can't write against a read only replica.\r\n"),
         errors.StoreReadOnlyError),
        (saying(b"-WRONGTYPE Operation against a key\r\n"), errors.StoreError),
        (slamming, errors.StoreUnavailableError),
    ],
)  # fmt: skip
def test_what_is_no_redis_server(handler: Handler, expected: type[Exception]) -> None:
    """Other servers, broken replies and refusals are typed and name the host: C5, C33."""
    with peer(handler) as url:
        store = open_store(url)
        with pytest.raises(errors.StoreError, match=r"127\.0\.0\.1") as caught:
            store.newest(KEYS, timeout=WAIT)
        assert isinstance(caught.value, expected)
        store.close()


def test_nobody_listens() -> None:
    """A closed port is an error at once, not after retries: C33, C73."""
    store = open_store("redis://127.0.0.1:1")
    started = time.monotonic()
    with pytest.raises(errors.StoreUnavailableError, match=r"127\.0\.0\.1:1"):
        store.time_ms(timeout=WAIT)
    assert time.monotonic() - started < MUCH_TOO_LONG


def test_a_long_outage_is_survived() -> None:
    """More failed attempts than redis-py's pools allow connections harm no later one: C73, C84."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    store = open_store(f"redis://127.0.0.1:{port}")
    for _ in range(120):
        with pytest.raises(errors.StoreUnavailableError, match=r"refused|Connection"):
            store.time_ms(timeout=WAIT)


def test_a_closed_connection_is_replaced(redis_state_fake_server: FakeStateServer) -> None:
    """A connection that the server closed meanwhile is replaced within the same call."""
    store = open_store(redis_state_fake_server.url)
    store.time_ms(timeout=WAIT)
    store._exchange._connector._idle._sock.shutdown(socket.SHUT_RDWR)  # type: ignore[attr-defined]
    assert store.time_ms(timeout=WAIT) > 0
    store.close()
    assert store.time_ms(timeout=WAIT) > 0  # and after close() it connects anew
    store.close()


def test_one_connection_for_each_store(redis_state_server: EmbeddedServer) -> None:
    """However many calls, a store holds one connection, and `close` gives it back: C84."""
    stores = [open_store(redis_state_server.url) for _ in range(5)]
    for _ in range(3):
        for store in stores:
            store.time_ms(timeout=WAIT)
    assert connected(stores[0]) == 5
    for store in stores[1:]:
        store.close()
    deadline = time.monotonic() + WAIT
    while connected(stores[0]) > 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert connected(stores[0]) == 1


def connected(store: Any) -> int:
    (reply,) = store._run("info", [("INFO", "clients")], WAIT)
    return int(bytes(reply).split(b"connected_clients:")[1].split()[0])


def test_closing_ends_a_connection_in_use() -> None:
    """A store that is closed during a call keeps no connection when the call ends: C84."""
    asked, answer = threading.Event(), threading.Event()

    def waiting(connection: socket.socket) -> None:
        connection.recv(65536)
        asked.set()
        assert answer.wait(WAIT)
        connection.sendall(b"*2\r\n$1\r\n5\r\n$1\r\n0\r\n")
        silent(connection)

    with peer(waiting) as url:
        store = open_store(url)
        times: list[int] = []
        thread = threading.Thread(target=lambda: times.append(store.time_ms(timeout=WAIT)))
        thread.start()
        assert asked.wait(WAIT)
        store.close()
        answer.set()
        thread.join(WAIT)
        assert times == [5000]
        assert store._exchange._connector._idle is None  # type: ignore[attr-defined]


def test_no_thread_to_connect_with(
    redis_state_fake_server: FakeStateServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no thread can be started the call fails, and a later one connects."""
    store = open_store(redis_state_fake_server.url)
    with monkeypatch.context() as exhausted:
        exhausted.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(errors.StoreUnavailableError, match="can't start new thread"):
            store.time_ms(timeout=WAIT)
    assert store.time_ms(timeout=WAIT) > 0
    store.close()


def no_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_a_refused_state_is_let_go() -> None:
    """What a server refuses is freed with the error, not when the garbage is collected: C61."""
    with peer(saying(b"-OOM command not allowed when used memory > 'maxmemory'.\r\n")) as url:
        store = open_store(url)
        data = np.zeros(100_000, np.uint8)
        freed = weakref.ref(data)
        gc.disable()
        try:
            with pytest.raises(errors.StoreFullError):
                store.put_blobs(KEYS, {"0" * 32: data}, ttl_s=60, timeout=WAIT)
            del data
            assert freed() is None
        finally:
            gc.enable()
        store.close()


def test_a_hanging_server_is_left_early() -> None:
    """A learner that has a minute for a version does not spend it on one small answer: C76."""
    with peer(silent) as url, pytest.MonkeyPatch.context() as patch:
        patch.setattr("redis_state_sync.redis_store.REPLY_TIMEOUT_S", 0.1)
        store = open_store(url)
        for ask in (store.newest, store.pins):
            started = time.monotonic()
            with pytest.raises(errors.StoreTimeoutError):
                ask(KEYS, timeout=60.0)
            assert time.monotonic() - started < MUCH_TOO_LONG
        store.close()


def test_connecting_goes_on_in_the_background() -> None:
    """Who gives up waiting for a slow connection finds it ready the next time: C74."""
    go_on = threading.Event()

    def slow_to_begin(connection: socket.socket) -> None:
        connection.recv(65536)  # SELECT 1, which connecting sends
        assert go_on.wait(WAIT)
        connection.sendall(b"+OK\r\n")
        saying(b"*2\r\n$1\r\n5\r\n$1\r\n0\r\n")(connection)

    with peer(slow_to_begin) as url:
        store = open_store(f"{url}/1", connect_timeout_s=WAIT)
        with pytest.raises(errors.StoreTimeoutError, match="still connecting"):
            store.time_ms(timeout=0.05)
        attempt = store._exchange._connector._attempt  # type: ignore[attr-defined]
        go_on.set()
        attempt.result(WAIT)
        assert store.time_ms(timeout=WAIT) == 5000
        store.close()


def test_a_poll_does_not_wait_for_another_threads_transfer() -> None:
    """A store that is busy with a long call of another thread refuses a short one in time: C72."""
    started, done = threading.Event(), threading.Event()

    def stuck(connection: socket.socket) -> None:
        connection.recv(65536)
        started.set()
        assert done.wait(WAIT)

    with peer(stuck) as url:
        store = open_store(url, stall_timeout_s=60.0)

        def transfer() -> None:
            with pytest.raises(errors.StoreError):
                store.get_blobs(KEYS, ["0" * 32], timeout=WAIT)

        thread = threading.Thread(target=transfer)
        thread.start()
        assert started.wait(WAIT)
        with pytest.raises(errors.StoreTimeoutError, match="busy"):
            store.newest(KEYS, timeout=0.05)
        done.set()
        thread.join(WAIT)
        assert not thread.is_alive()


# Forking with threads is what is under test.
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_fork(redis_state_server: EmbeddedServer) -> None:
    """Parent and child both poll on, each gets its own replies, none loses its connection: C90."""
    store = open_store(redis_state_server.url)
    keys = {i: Keys(f"n{i}") for i in (0, 1)}
    for i in (0, 1):
        store.append(keys[i], Version(i + 1, 1), b"m%d" % i, ttl_s=60, timeout=WAIT)
    connection = store._exchange._connector._idle  # type: ignore[attr-defined]

    def poll(i: int) -> None:
        for _ in range(300):
            assert store.newest(keys[i], timeout=WAIT)[0].manifest == b"m%d" % i

    parent = threading.Thread(target=poll, args=(0,))
    child: list[int] = []
    parent.start()
    child.append(in_child(lambda: poll(1)))
    parent.join(WAIT)
    assert child == [0]
    poll(0)
    assert store._exchange._connector._idle is connection  # type: ignore[attr-defined]
    store.close()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_fork_while_another_thread_holds_the_store(redis_state_server: EmbeddedServer) -> None:
    """A child forked in the middle of a call is not locked out of the store for ever: C90."""
    store = open_store(redis_state_server.url)
    store.time_ms(timeout=WAIT)
    with store._exchange._lock:  # type: ignore[attr-defined]
        assert in_child(lambda: store.time_ms(timeout=10.0)) == 0
        # and not out of closing it, with the lock of its connections held as well
        with store._exchange._connector._lock:  # type: ignore[attr-defined]
            assert in_child(store.close) == 0
    assert store.time_ms(timeout=WAIT) > 0


def test_pickle_travels_without_connection(redis_state_server: EmbeddedServer) -> None:
    """A pickled store connects by itself where it arrives: C91."""
    store = open_store(redis_state_server.url)
    store.time_ms(timeout=WAIT)
    other = pickle.loads(pickle.dumps(store))
    assert other._exchange._connector._idle is None
    assert other.time_ms(timeout=WAIT) > 0
    other.close()
    store.close()


def test_a_memory_store_does_not_travel() -> None:
    """A store within a process can not be pickled by accident into another one."""
    with pytest.raises(TypeError):
        pickle.dumps(MemoryStore())


def test_connecting_asks_no_more_than_it_must() -> None:
    """The first bytes on the wire are the poll itself: no HELLO, SETINFO or PING: C75, C83."""
    received: list[bytes] = []

    def recording(connection: socket.socket) -> None:
        received.append(connection.recv(65536))
        connection.sendall(b"*0\r\n")
        silent(connection)

    with peer(recording) as url:
        store = open_store(url)
        assert store.newest(KEYS, timeout=WAIT) == []
        store.close()
    assert b"".join(received).startswith(b"*6\r\n$9\r\nXREVRANGE\r\n")


def test_connecting_by_resp3_asks_for_resp3_alone() -> None:
    """With protocol=3 a HELLO precedes the poll, and nothing else: no notifications are wanted."""
    received: list[bytes] = []

    def recording(connection: socket.socket) -> None:
        while data := connection.recv(65536):
            received.append(data)
            hello = len(received) == 1
            connection.sendall(b"%1\r\n+proto\r\n:3\r\n" if hello else b"*0\r\n")

    with peer(recording) as url:
        store = open_store(f"{url}?protocol=3")
        assert store.newest(KEYS, timeout=WAIT) == []
        store.close()
    assert [data.split(b"\r\n")[2] for data in received] == [b"HELLO", b"XREVRANGE"]


def test_a_poll_needs_no_exclusive_range() -> None:
    """A poll asks from the id next to its own on: servers before 6.2 know no exclusive start."""
    received: list[bytes] = []

    def recording(connection: socket.socket) -> None:
        while data := connection.recv(65536):
            received.append(data)
            connection.sendall(b"*0\r\n")

    with peer(recording) as url:
        store = open_store(url)
        store.newest(KEYS, after=Version(7, 1), timeout=WAIT)
        store.newest(KEYS, after=Version(7, 2**64 - 1), timeout=WAIT)
        assert store.newest(KEYS, after=Version(2**64 - 1, 2**64 - 1), timeout=WAIT) == []
        store.close()
    first, second = received
    assert b"\r\n+\r\n$3\r\n7-2\r\n" in first
    assert b"\r\n+\r\n$3\r\n8-0\r\n" in second


def test_pools_never_retry() -> None:
    """No retries of redis-py's own: those who know how much time is left decide: C73."""
    pool = make_pool(parse_url("redis://h?protocol=3"), connect_timeout_s=1.0)
    connection = pool.connection_class(**pool.connection_kwargs)
    assert connection.retry.get_retries() == 0
    # A second address of the same name has its turn within the time for all.
    assert 1.0 < 2 * connection.socket_connect_timeout < 2.0
    assert pool.connection_kwargs["protocol"] == 3


@pytest.mark.parametrize(
    ("query", "cert_reqs", "checked"),
    [
        ("", "required", True),
        ("?ssl_check_hostname=false", "required", False),
        ("?ssl_cert_reqs=optional", "optional", True),
        ("?ssl_cert_reqs=none", "none", False),
    ],
)
def test_tls_options(query: str, cert_reqs: str, checked: bool) -> None:
    """Certificates are verified and host names checked, unless the URL says otherwise: C82."""
    options = make_pool(parse_url(f"rediss://h{query}"), connect_timeout_s=1.0).connection_kwargs
    assert (options["ssl_cert_reqs"], options["ssl_check_hostname"]) == (cert_reqs, checked)


def test_a_sentinel_url_makes_a_sentinel_pool() -> None:
    """Every sentinel of the URL is asked, for the service of the URL: C77."""
    pool = make_pool(parse_url("redis+sentinel://a:1,b/svc/2"), connect_timeout_s=1.0)
    addresses = [
        (s.connection_pool.connection_kwargs["host"], s.connection_pool.connection_kwargs["port"])
        for s in pool.sentinel_manager.sentinels
    ]
    assert addresses == [("a", 1), ("b", 26379)]
    # A client, unlike a connection, would retry for seconds by default: C73.
    assert [s.get_retry().get_retries() for s in pool.sentinel_manager.sentinels] == [0, 0]
    assert (pool.service_name, pool.connection_kwargs["db"]) == ("svc", 2)


def test_an_attempt_of_an_outage_that_is_over() -> None:
    """An attempt that failed since the last call is made again at once: the server may be back.

    One that was given up in its handshake would else fail once more when all is well, and the
    store be left alone for a while longer.
    """
    gone, attempts = threading.Event(), []

    class FakeConnection:
        def __init__(self, **kwargs: Any) -> None:
            attempts.append(self)

        def connect(self) -> None:
            if len(attempts) == 1:
                gone.wait(WAIT)
                raise ConnectionResetError

    class FakePool:
        connection_class = FakeConnection
        connection_kwargs: dict[str, Any] = {}  # noqa: RUF012 - as redis-py has it

    connector = Connector(FakePool, "here")
    with pytest.raises(errors.StoreTimeoutError):
        connector.acquire(0.01)
    attempt = connector._attempt
    assert attempt is not None
    gone.set()
    assert isinstance(attempt.exception(WAIT), ConnectionResetError)
    connection, fresh = connector.acquire(WAIT)
    assert fresh
    assert connection is attempts[1]


def test_what_is_wrong_is_told_though_it_takes_long() -> None:
    """What an attempt fails with is told, even if none ever ends within a caller's time."""
    began = threading.Semaphore(0)

    class FakeConnection:
        def __init__(self, **kwargs: Any) -> None:
            pass

        def connect(self) -> None:
            began.acquire(timeout=WAIT)
            raise PermissionError("wrong password")

    class FakePool:
        connection_class = FakeConnection
        connection_kwargs: dict[str, Any] = {}  # noqa: RUF012 - as redis-py has it

    connector = Connector(FakePool, "here")
    expected: list[type[Exception]] = [errors.StoreTimeoutError, *[PermissionError] * 3]
    for error in expected:
        with pytest.raises(error):
            connector.acquire(0.01)
        attempt = connector._attempt
        assert attempt is not None
        began.release()
        attempt.exception(WAIT)


def test_connector_forgets_a_failed_attempt() -> None:
    """An attempt that failed is followed by a new one, not reported for ever."""
    attempts: list[int] = []

    class Connection:
        def connect(self) -> None:
            attempts.append(1)
            if len(attempts) == 1:
                raise OSError("first")

        def disconnect(self) -> None:
            pass

    class FakePool:
        connection_class = Connection
        connection_kwargs: dict[str, Any] = {}  # noqa: RUF012 - as redis-py has it

    connector = Connector(FakePool, "here")
    gc.collect()
    gc.disable()
    try:
        with pytest.raises(OSError, match="first"):
            connector.acquire(WAIT)
        assert gc.collect() == 0  # and leaves nothing to the garbage collector
    finally:
        gc.enable()
    connection, fresh = connector.acquire(WAIT)
    assert fresh
    connector.release(connection)
    assert connector.acquire(WAIT) == (connection, False)


def test_a_learner_fails_at_start() -> None:
    """A learner whose server never answers fails at start, within its timeout: C32, C33."""
    with peer(silent) as url:
        store = open_store(url)
        started = time.monotonic()
        with (
            pytest.raises(errors.StoreTimeoutError),
            publishing(store, connect_timeout_s=0.2) as publisher,
        ):
            publisher.publish(state(1))
        assert time.monotonic() - started < MUCH_TOO_LONG
        store.close()


def test_replies_never_get_out_of_step() -> None:
    """A reply too many, or one of another command, costs the connection and nothing more."""

    def one_too_many(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(b"*2\r\n$1\r\n7\r\n$1\r\n0\r\n*2\r\n$1\r\n8\r\n$1\r\n0\r\n")
        silent(connection)

    def another_ones(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(b":1\r\n")
        connection.recv(65536)
        connection.sendall(b"*2\r\n$1\r\n8\r\n$1\r\n0\r\n")
        silent(connection)

    with peer(one_too_many) as url:
        store = open_store(url)
        assert [store.time_ms(timeout=WAIT) for _ in range(3)] == [7000] * 3
        store.close()
    with peer(another_ones) as url:
        store = open_store(url)
        for _ in range(3):
            with pytest.raises(errors.StoreReplyError):
                store.time_ms(timeout=WAIT)
        store.close()


def test_a_poll_that_is_never_answered_does_not_take_a_publishers_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Looking at what is stored ends long before the time that a whole publish has."""
    monkeypatch.setattr(redis_store, "REPLY_TIMEOUT_S", 0.1)
    with peer(silent) as url:
        store = open_store(url)
        started = time.monotonic()
        with pytest.raises(errors.StoreTimeoutError):
            store.newest(KEYS, timeout=60.0)
        assert time.monotonic() - started < MUCH_TOO_LONG
        store.close()
