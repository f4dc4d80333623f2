"""Readers that rely on the server's word, over real servers, and whatever befalls these."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis

from redis_state_sync import Snapshot, StateSubscriber, Version, open_store
from redis_state_sync.embedded import EmbeddedServer
from redis_state_sync.events import Failed, Polled
from redis_state_sync.keys import Keys
from redis_state_sync.poller import LOOK_EVERY_S
from redis_state_sync.redis_store import RedisStore
from redis_state_sync.store import Store
from tests.chaos.proxy import Proxy
from tests.contract.conftest import WAIT, run
from tests.contract.servers import (
    Authority,
    free_port,
    options,
    redis_binary,
    start,
    tls_lines,
    until,
    valkey_binary,
)
from tests.contract.traffic import number_in, state
from tests.unit.states import Reader, publishing

_numbers = itertools.count()


@dataclass
class Place:
    """A real server, and how a reader speaks to it."""

    server: EmbeddedServer
    url: str
    questions: int = 0

    def open(self) -> Store:
        return open_store(self.url)

    def client(self) -> redis.Redis:
        """Of one's own, to look at the server and to do harm to it."""
        return redis.Redis(unix_socket_path=str(self.server.socket_path), protocol=2)

    def commands(self) -> int:
        """How many were done, but for these questions."""
        self.questions += 1
        store = open_store(self.server.url)
        info = bytes(run(store, ("INFO", "stats"))[0])
        store.close()
        return int(info.split(b"total_commands_processed:")[1].split()[0]) - self.questions


@contextmanager
def valkey() -> Iterator[Place]:
    with start(valkey_binary()) as server:
        yield Place(server, f"{server.url}?protocol=3")


@contextmanager
def debian_redis() -> Iterator[Place]:
    port = free_port()
    with start(redis_binary(), port=port) as server:
        yield Place(server, f"redis://127.0.0.1:{port}?protocol=3")


@contextmanager
def debian_redis_tls(folder: Path) -> Iterator[Place]:
    authority, port = Authority(folder), free_port()
    own = authority.issue("127.0.0.1")
    lines = ("bind 127.0.0.1", f"tls-port {port}", *tls_lines(authority, own))
    with start(redis_binary(), *lines) as server:
        asked = options(protocol=3, ssl_ca_certs=authority.file)
        yield Place(server, f"rediss://127.0.0.1:{port}{asked}")


@pytest.fixture(scope="module", params=["valkey", "redis", "redis-tls"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator:  # type: ignore[type-arg]
    with ExitStack() as stack:
        made = {
            "valkey": valkey,
            "redis": debian_redis,
            "redis-tls": lambda: debian_redis_tls(tmp_path_factory.mktemp("tls")),
        }[request.param]()
        yield stack.enter_context(made)


@pytest.fixture
def namespace() -> str:
    return f"tracking/{next(_numbers)}"


class Still(Reader):
    """A reader whose clock stands still: it never looks by itself, but when it is told."""

    def __init__(self, store: Store, namespace: str, **kwargs: Any) -> None:
        super().__init__(store, namespace, tracking=True, poll_timeout_s=WAIT, **kwargs)

    def look(self) -> Snapshot | None:
        """One refresh, and no time passes."""
        return self.subscriber.refresh(self.applied.append)

    def settle(self) -> None:
        """Refreshes until it need not ask any more."""
        poller = self.subscriber._arrivals.poller
        until(lambda: self.look() is None and poller.unchanged(), "the server's word")

    def reach(self, version: Version | None) -> None:
        """Refreshes until it holds a version."""
        until(lambda: self.look() and self.subscriber.held == version, f"version {version}")


def test_nothing_is_sent(place: Place, namespace: str) -> None:
    """While nothing changes, refreshes send nothing; each second one looks, by one question."""
    store = place.open()
    with publishing(place.open(), namespace) as publisher:
        reader = Still(store, namespace)
        version = publisher.publish(state(1)).wait(WAIT)
        reader.reach(version)
        publisher.flush(WAIT)
        reader.settle()
        polled = len(reader.seen(Polled))
        before = place.commands()
        for _ in range(300):
            assert reader.look() is None
        assert place.commands() == before
        assert len(reader.seen(Polled)) == polled + 300  # It is one nonetheless.
        for looks in range(1, 4):
            reader.clock.now += LOOK_EVERY_S
            for _ in range(20):
                reader.look()
            assert place.commands() == before + looks
    store.close()


def test_each_version_is_seen(place: Place, namespace: str) -> None:
    """A version is applied by a refresh after the server's message, though no time passes: C2."""
    store = place.open()
    with publishing(place.open(), namespace) as publisher:
        reader = Still(store, namespace)
        for number in range(1, 21):
            if number % 3:
                reader.settle()
            version = publisher.publish(state(number)).wait(WAIT)
            reader.reach(version)
            assert number_in(reader.applied[-1]) == number
        assert reader.seen(Failed) == []
    store.close()


def test_publisher_and_reader_on_one_handle(place: Place, namespace: str) -> None:
    """A process that publishes and reads over one connection sees its own versions."""
    store = place.open()
    with publishing(store, namespace) as publisher:
        reader = Still(store, namespace)
        for number in range(1, 11):
            version = publisher.publish(state(number)).wait(WAIT)
            reader.reach(version)
            reader.settle()
        assert reader.seen(Failed) == []


def test_two_namespaces_on_one_handle(place: Place, namespace: str) -> None:
    """Each is seen to change, whichever did, in whatever order they are read."""
    store = place.open()
    names = [namespace, f"{namespace}/b"]
    with publishing(place.open(), names[0]) as a, publishing(place.open(), names[1]) as b:
        readers = [Still(store, name) for name in names]
        for number in range(1, 13):
            for reader in readers[:: 1 if number % 2 else -1]:
                reader.settle()
            which = number % 3 % 2
            version = (a, b)[which].publish(state(number)).wait(WAIT)
            readers[1 - which].look()
            readers[which].reach(version)
        assert [reader.seen(Failed) for reader in readers] == [[], []]
    store.close()


def test_threads_on_one_handle(place: Place, namespace: str) -> None:
    """Several readers that share a connection all get each other's news, and never go back."""
    store = place.open()
    done = threading.Event()
    applied: list[list[Version]] = [[] for _ in range(4)]
    problems: list[BaseException] = []
    subscribers = [
        StateSubscriber(store, namespace, tracking=True, poll_timeout_s=WAIT) for _ in applied
    ]

    def follow(which: int) -> None:
        try:
            while not done.is_set():
                subscribers[which].refresh(lambda s: applied[which].append(s.version))
                time.sleep(0.001)
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=follow, args=(which,)) for which in range(4)]
    for thread in threads:
        thread.start()
    with publishing(place.open(), namespace) as publisher:
        for number in range(1, 31):
            publisher.publish(state(number)).wait(WAIT)
            time.sleep(0.005)
        last = publisher.flush(WAIT)
        until(lambda: all(s.held == last for s in subscribers), "the last version")
        done.set()
        for thread in threads:
            thread.join(WAIT)
    assert problems == []
    assert all(versions == sorted(set(versions)) for versions in applied)
    store.close()


def test_forget_and_adopt(place: Place, namespace: str) -> None:
    """The server's word is about what was asked: a reader that forgot or adopted asks anew."""
    store = place.open()
    with publishing(place.open(), namespace) as publisher:
        reader = Still(store, namespace)
        version = publisher.publish(state(1)).wait(WAIT)
        reader.reach(version)
        reader.settle()
        reader.subscriber.forget()
        reader.reach(version)
        reader.settle()
        ahead = Version(version.generation, version.number + 1)
        reader.subscriber.adopt(ahead)
        assert publisher.publish(state(2)).wait(WAIT) == ahead
        reader.settle()
        assert reader.subscriber.held == ahead
        reader.reach(publisher.publish(state(3)).wait(WAIT))
        assert [number_in(snapshot) for snapshot in reader.applied] == [1, 1, 3]
    store.close()


def killed(place: Place) -> None:
    with place.client() as client:
        client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")


def emptied(place: Place) -> None:
    with place.client() as client:
        client.flushall()


def forgotten(place: Place) -> None:
    """The server has no room to remember who read what."""
    with place.client() as client:
        client.config_set("tracking-table-max-keys", 1)
        others = [redis.Redis(unix_socket_path=str(place.server.socket_path), protocol=3)]
        connection = others[0].connection_pool.get_connection()
        for command in (("CLIENT", "TRACKING", "ON"), *(("GET", f"k{n}") for n in range(50))):
            connection.send_command(*command)
            connection.read_response()
        connection.disconnect()
        client.config_set("tracking-table-max-keys", 1_000_000)
        others[0].close()


@pytest.mark.parametrize("harm", [killed, emptied, forgotten])
def test_harm(place: Place, namespace: str, harm: Callable[[Place], None]) -> None:
    """What ends the server's word is noticed at once, and by itself is no failure: C2, C63."""
    store = place.open()
    with publishing(place.open(), namespace) as publisher:
        reader = Still(store, namespace)
        for number in range(1, 4):
            reader.reach(publisher.publish(state(number)).wait(WAIT))
            reader.settle()
            harm(place)
            until(lambda: not reader.subscriber._arrivals.poller.unchanged(), "doubt")
            assert reader.look() is None
            reader.settle()
        reader.reach(publisher.publish(state(9)).wait(WAIT))
        assert {failed.category for failed in reader.seen(Failed)} <= {"behind"}
    store.close()


def test_expiry(place: Place, namespace: str) -> None:
    """A key that expires is no longer what was read, and its end is told."""
    store, keys = place.open(), Keys(namespace)
    store.append(keys, Version(1, 1), b"m", ttl_s=60, timeout=WAIT)
    with place.client() as client:
        client.pexpire(keys.versions, 300)
    assert len(store.newest(keys, timeout=WAIT, tracked=True)) == 1
    mark = store.mark()
    assert mark is not None
    until(lambda: store.mark() != mark, "the key's end")
    assert store.newest(keys, timeout=WAIT, tracked=True) == []
    store.close()


@pytest.mark.parametrize("without", ["client|tracking", "client|caching"])
def test_a_user_without_the_right(
    place: Place,
    namespace: str,
    without: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who may not have reads tracked polls as ever, and says nothing alarming: C83."""
    with place.client() as client:
        rules = ("on", ">pw", "~*", "+@all", f"-{without}")
        client.execute_command("ACL", "SETUSER", "reader", "reset", *rules)
    monkeypatch.setenv("THE_READERS_PASSWORD", "pw")
    store = open_store(place.url.replace("://", "://reader@"), password_env="THE_READERS_PASSWORD")
    with publishing(place.open(), namespace) as publisher:
        reader = Still(store, namespace)
        for number in range(1, 4):
            version = publisher.publish(state(number)).wait(WAIT)
            snapshot = reader.look()
            assert snapshot is not None
            assert snapshot.version == version
            assert store.mark() is None
        assert reader.seen(Failed) == []
    assert [record for record in caplog.records if record.levelname != "INFO"] == []
    store.close()


def test_resp2(place: Place, namespace: str) -> None:
    """By RESP2, where nothing can be told unasked, each refresh asks."""
    store = open_store(place.url.replace("protocol=3", "protocol=2"))
    with publishing(place.open(), namespace) as publisher:
        reader = Still(store, namespace)
        for number in range(1, 4):
            version = publisher.publish(state(number)).wait(WAIT)
            snapshot = reader.look()
            assert snapshot is not None
            assert snapshot.version == version
            assert store.mark() is None
    store.close()


@pytest.mark.parametrize("decode", [False, True])
def test_a_client_of_ones_own(place: Place, namespace: str, decode: bool) -> None:
    """Over a user's client that speaks RESP3 reads are tracked as over a URL."""
    client = redis.Redis(
        unix_socket_path=str(place.server.socket_path), protocol=3, decode_responses=decode
    )
    store = RedisStore.from_client(client)
    with publishing(place.open(), namespace) as publisher:
        reader = Still(store, namespace)
        for number in range(1, 6):
            reader.reach(publisher.publish(state(number)).wait(WAIT))
            reader.settle()
        publisher.flush(WAIT)
        reader.settle()
        before = place.commands()
        for _ in range(50):
            reader.look()
        assert place.commands() == before
    store.close()
    client.close()


def test_a_restarted_server(namespace: str) -> None:
    """After a crash the reader goes on with the first version that the learner stores: C63."""
    with valkey() as place:
        store = place.open()
        with publishing(place.open(), namespace) as publisher:
            reader = Still(store, namespace)
            reader.reach(publisher.publish(state(1)).wait(WAIT))
            reader.settle()
            place.server.kill()
            until(lambda: not reader.subscriber._arrivals.poller.unchanged(), "doubt")
            assert reader.look() is None
            assert {failed.category for failed in reader.seen(Failed)} == {"network"}
            place.server.start()
            version = publisher.publish(state(2)).wait(WAIT)
            reader.clock.now += 10.0  # The cool-down.
            reader.reach(version)
            reader.settle()
            reader.reach(publisher.publish(state(3)).wait(WAIT))
        store.close()


def test_a_dead_connection(namespace: str) -> None:
    """One that brings no word hides a version until the next look, a second later at most: C2."""
    with valkey() as place:
        proxy = Proxy(str(place.server.socket_path), free_port())
        try:
            store = open_store(f"{proxy.url}?protocol=3")
            with publishing(place.open(), namespace) as publisher:
                reader = Still(store, namespace)
                reader.subscriber._poll_timeout_s = 0.1
                reader.reach(publisher.publish(state(1)).wait(WAIT))
                reader.settle()
                assert proxy.bury() == 1
                version = publisher.publish(state(2)).wait(WAIT)
                for _ in range(50):
                    assert reader.look() is None
                assert reader.seen(Failed) == []
                reader.clock.now += LOOK_EVERY_S
                assert reader.look() is None
                assert {failed.category for failed in reader.seen(Failed)} == {"timeout"}
                reader.subscriber._poll_timeout_s = WAIT
                reader.clock.now += 0.2  # Longer than the first cool-down.
                reader.reach(version)
            store.close()
        finally:
            proxy.close()


def test_what_a_user_reads(place: Place, namespace: str) -> None:
    """With a real clock a reader in a loop gets every news in a small part of a second's look."""
    store = place.open()
    with publishing(place.open(), namespace) as publisher:
        subscriber = StateSubscriber(store, namespace, tracking=True, poll_timeout_s=WAIT)
        late = []
        for number in range(1, 16):
            version = publisher.publish(state(number)).wait(WAIT)
            stored = time.monotonic()
            subscriber.wait_for(lambda s: None, version=version, timeout=WAIT)
            late.append(time.monotonic() - stored)
        assert sorted(late)[len(late) // 2] < LOOK_EVERY_S / 4
    store.close()
