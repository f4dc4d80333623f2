"""Replies of hostile servers: bounded in time and memory, and never another exception."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis

from redis_state_sync import StateSubscriber, errors, open_store
from redis_state_sync.guarded import GREETING_BYTES, GuardedSocket, guarded
from redis_state_sync.keys import Keys
from redis_state_sync.manifest import MAX_MANIFEST_BYTES
from redis_state_sync.redis_store import RedisStore
from redis_state_sync.store import Store
from redis_state_sync.version import Version
from tests.unit.bounds import cpu_seconds, peak_memory
from tests.unit.peers import Handler, peer, saying
from tests.unit.states import WAIT

KEYS = Keys("n")
MUCH_TOO_LONG = 5.0
CALLS: dict[str, Callable[[Store], Any]] = {
    "newest": lambda s: s.newest(KEYS, count=16, timeout=WAIT),
    "get_blobs": lambda s: s.get_blobs(KEYS, ["0" * 32, "1" * 32], timeout=WAIT),
    "time_ms": lambda s: s.time_ms(timeout=WAIT),
    "server_facts": lambda s: s.server_facts(timeout=WAIT),
    "pins": lambda s: s.pins(KEYS, timeout=WAIT),
    "append": lambda s: s.append(KEYS, Version(1, 1), b"m", ttl_s=10, timeout=WAIT),
    "refresh": lambda s: s.refresh(KEYS, ["0" * 32], ttl_s=10, timeout=WAIT),
    "note_reader": lambda s: s.note_reader(KEYS, "me", "1-1", ttl_s=10, timeout=WAIT),
    "put_blobs": lambda s: s.put_blobs(KEYS, {"0" * 32: b"x"}, ttl_s=10, timeout=WAIT),
    "ask_for_blob": lambda s: s.ask_for_blob(KEYS, "0" * 32, ttl_s=10, timeout=WAIT),
    "forget_readers": lambda s: s.forget_readers(KEYS, now_ms=10**12, ttl_s=10, timeout=WAIT),
    "drop": lambda s: s.drop(KEYS, [Version(1, 1)], ["0" * 32], timeout=WAIT),
}
NINES = b"$400\r\n" + b"9" * 400 + b"\r\n"
MANIFEST = b"*2\r\n$8\r\nmanifest\r\n$1\r\nx\r\n"
REPLIES = [
    b"*2\r\n$2\r\nme\r\n:5\r\n", b"*2\r\n:5\r\n$2\r\nme\r\n", b"%1\r\n$2\r\nme\r\n_\r\n",
    b"-MOVED x\r\n", b"-ASK 5 6\r\n", b"-MOVED 1 :0\r\n", b"-MOVED 99999 [::1]:99999999\r\n",
    b":9999999999\r\n", b"$-1\r\n", b"_\r\n", b"*-1\r\n", b"*0\r\n", b"+\r\n", b"#t\r\n",
    b",nan\r\n", b"-\r\n", b"-ERR \xff\xfe\r\n", b"(99999999999999999999\r\n",
    b"*2\r\n,inf\r\n,inf\r\n", b"*1\r\n-ERR x\r\n", b"*2\r\n-ERR x\r\n-ERR y\r\n",
    b"*2\r\n:1\r\n:2\r\n", b"*2\r\n*0\r\n*0\r\n", b"*1\r\n*2\r\n:1\r\n" + MANIFEST,
    b"*1\r\n*2\r\n*0\r\n" + MANIFEST, b"*1\r\n*2\r\n_\r\n" + MANIFEST,
    b"*1\r\n*2\r\n$2\r\n\xff\xfe\r\n" + MANIFEST, b"*1\r\n*2\r\n-ERR x\r\n" + MANIFEST,
    b"*1\r\n*2\r\n" + NINES + MANIFEST, b"*1\r\n*2\r\n$3\r\n1-1\r\n:5\r\n", b"*1\r\n$2\r\nab\r\n",
    b"*1\r\n*2\r\n$3\r\n1-1\r\n*2\r\n:1000000000\r\n$1\r\nx\r\n",
    b"*2\r\n" + NINES + b"$1\r\n1\r\n", b"*2\r\n$2\r\n-1\r\n$1\r\n0\r\n",
    b"*2\r\n$2\r\n\xff\xfe\r\n$3\r\n1-1\r\n", b"*2\r\n:1000000000\r\n$3\r\n1-1\r\n",
    b"%1\r\n$1\r\na\r\n:1\r\n", b"%1\r\n*1\r\n:1\r\n:1\r\n", b"~2\r\n*0\r\n*0\r\n",
    b"=8\r\ntxt:abcd\r\n", b"$5\r\nabcde\r\n", b"*1\r\n" * 1000, b">1\r\n:1\r\n" * 3000,
    b"|1\r\n+a\r\n+b\r\n:1\r\n", b"*2147483647\r\n", b"%2147483647\r\n", b"*131072\r\n" * 7,
    b"$9223372036854775807\r\n", b"$-2\r\n", b"*-2\r\n", b"$?\r\n", b"?\r\n",
]  # fmt: skip


@pytest.mark.parametrize("scheme", ["redis", "redis+cluster"])
@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_whatever_a_server_answers(
    call: Callable[[Store], Any], protocol: int, scheme: str
) -> None:
    """Any reply to any call gives a value or a StoreError, in both protocols: C5, C58."""
    current: list[bytes] = [b""]

    def answering(connection: socket.socket) -> None:
        while data := connection.recv(65536):
            # Then ends, as for what is incomplete the call would wait.
            greeting = b"%1\r\n+proto\r\n:3\r\n" if b"HELLO" in data else current[0]
            connection.sendall(greeting)
            if b"HELLO" not in data:
                return

    with peer(answering) as url:
        for reply in REPLIES:
            current[0] = reply
            store = open_store(f"{url}?protocol={protocol}".replace("redis", scheme, 1))
            try:
                call(store)
            except errors.StoreError:
                pass
            store.close()


@pytest.mark.parametrize("reply", [b"*2147483647\r\n" * 7, b"*2147483647\r\n", b"%1073741824\r\n"])
def test_announced_elements_take_no_memory(reply: bytes) -> None:
    """A reply of ten bytes that announces two thousand million elements costs nothing: C58.

    hiredis reserves 16 GB for them, which Python then looks through for seconds at a time.
    """
    with peer(saying(reply)) as url:
        store = open_store(url)

        def poll() -> None:
            with pytest.raises(errors.StoreReplyError, match="elements"):
                store.newest(KEYS, timeout=WAIT)

        assert peak_memory(poll) < 1 << 20
        assert cpu_seconds(poll) < 1
        store.close()


@pytest.mark.parametrize("size", [1 << 30, 1 << 20])
def test_a_longer_value_than_announced_by_the_manifest(size: int) -> None:
    """A value much longer than the manifest says is refused before it is read: C58."""
    sent: list[int] = []

    def long(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(b"$%d\r\n" % size)
        for _ in range(size >> 16):
            connection.sendall(bytes(1 << 16))
            sent.append(1)

    with peer(long) as url:
        store = open_store(url)

        def fetch() -> None:
            with pytest.raises(errors.StoreReplyError, match=f"a value of {size} bytes"):
                store.get_blobs(KEYS, ["0" * 32], timeout=WAIT, limit=100)

        assert peak_memory(fetch) < 1 << 20
        store.close()


def test_endless_manifests() -> None:
    """A poll takes at most as many bytes as sixteen of the largest manifests: C58."""
    read: list[int] = []

    def endless(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(b"*131072\r\n")
        while True:
            connection.sendall(b"*2\r\n$3\r\n1-1\r\n" + MANIFEST)
            read.append(1)

    with peer(endless) as url:
        store = open_store(url)
        with pytest.raises(errors.StoreReplyError, match="during poll was refused"):
            store.newest(KEYS, count=1, timeout=WAIT)
        store.close()
    assert len(read) < 2 * MAX_MANIFEST_BYTES / len(MANIFEST)


@pytest.mark.parametrize(
    "greeting",
    [b"*2147483647\r\n", b"$2000000\r\n", b"+" + b"x" * 70_000, b"*1\r\n" * 300_000],
    ids=lambda greeting: greeting[:12].decode().strip(),
)
@pytest.mark.parametrize("protocol", [2, 3])
def test_a_greeting(greeting: bytes, protocol: int) -> None:
    """What a server answers to AUTH, HELLO or SELECT is bounded, too: C58."""
    with peer(saying(greeting)) as url:
        store = open_store(f"{url}/1?protocol={protocol}")

        def connect() -> None:
            with pytest.raises(errors.StoreError, match=r"127\.0\.0\.1"):
                store.time_ms(timeout=WAIT)

        assert peak_memory(connect) < 8 * GREETING_BYTES
        store.close()


def dripping(beginning: bytes) -> Handler:
    """Sends a byte now and then, for ever."""

    def handler(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(beginning)
        while True:
            time.sleep(0.01)
            connection.sendall(b"1")

    return handler


@pytest.mark.parametrize("beginning", [b"$100000\r\n", b"*9\r\n$50000\r\n", b"+", b"*3\r\n:1\r\n:"])
def test_a_dripping_server_costs_the_timeout_and_no_more(beginning: bytes) -> None:
    """A server that sends a byte now and then holds nobody beyond the time allowed: C72, C73."""
    with peer(dripping(beginning)) as url:
        store = open_store(url)
        started = time.monotonic()
        with pytest.raises(errors.StoreTimeoutError):
            store.newest(KEYS, timeout=0.2)
        assert time.monotonic() - started < MUCH_TOO_LONG
        store.close()


def test_a_dripping_greeting_ends() -> None:
    """An attempt to connect to a server that drips is given up, and the next one is made: C73."""
    greeted: list[int] = []

    def handler(connection: socket.socket) -> None:
        greeted.append(1)
        if len(greeted) == 1:
            dripping(b"$1000\r\n")(connection)
        while data := connection.recv(65536):
            answer = b"*2\r\n$1\r\n1\r\n$1\r\n0\r\n" if b"TIME" in data else b"+OK\r\n"
            connection.sendall(answer)

    with peer(handler) as url:
        store = open_store(f"{url}/1", connect_timeout_s=0.3)
        with pytest.raises(errors.StoreTimeoutError):
            store.time_ms(timeout=WAIT)
        assert store.time_ms(timeout=WAIT) == 1000
        store.close()


def test_a_subscriber_survives() -> None:
    """A reader whose server sends nonsense keeps going, and counts it: C5, C58."""
    for reply in REPLIES:
        with peer(saying(reply)) as url:
            subscriber = StateSubscriber(
                open_store(url), "n", first_timeout_s=0.1, poll_timeout_s=0.1
            )
            assert subscriber.refresh(lambda s: None) is None
            subscriber.close()


def test_a_client_of_ones_own_is_guarded() -> None:
    """The connections of a client that a user configured are guarded like ours: C58."""
    with peer(saying(b"*2147483647\r\n")) as url:
        store = RedisStore.from_client(redis.Redis.from_url(url))
        with pytest.raises(errors.StoreReplyError, match="2147483647 elements"):
            store.newest(KEYS, timeout=WAIT)
        store.close()


def test_a_guarded_class_is_made_once() -> None:
    """Each class of connections has one guarded one, named after it."""
    assert guarded(redis.Connection) is guarded(redis.Connection)
    assert guarded(redis.SSLConnection).__name__ == "GuardedSSLConnection"


def test_the_rest_of_a_socket_is_as_it_was() -> None:
    """Peeking takes nothing of the allowance, and what is not reading goes to the socket itself."""
    left, right = socket.socketpair()
    with left, right:
        guard = GuardedSocket(left, WAIT)
        guard.allow(time.monotonic() + WAIT, None, 3)
        right.sendall(b"abc")
        assert [guard.recv(3, socket.MSG_PEEK) for _ in range(5)] == [b"abc"] * 5
        assert guard.recv(3) == b"abc"
        assert guard.fileno() == left.fileno()
        thread = threading.Thread(target=guard.sendall, args=(b"x",))
        thread.start()
        assert right.recv(1) == b"x"
        thread.join()
        assert os.fstat(guard.fileno())
