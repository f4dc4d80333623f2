"""Every store, behind one fixture."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import fakeredis
import pytest
import redis

from redis_state_sync import open_store
from redis_state_sync.connection import make_pool
from redis_state_sync.embedded import EmbeddedServer
from redis_state_sync.endpoint import parse_url
from redis_state_sync.keys import Keys
from redis_state_sync.memory_store import MemoryStore
from redis_state_sync.node_cache import FOLDER_ENV
from redis_state_sync.redis_store import RedisStore
from redis_state_sync.store import Store
from redis_state_sync.testing import FakeStateServer
from tests.contract.cluster import cluster
from tests.contract.servers import (
    WAIT,
    Authority,
    free_port,
    options,
    redis_binary,
    start,
    tls_server,
    valkey_binary,
)

_numbers = itertools.count()


@dataclass
class Backend:
    """One place where states are, and as many handles on it as a test wants.

    Args:
        name: What the test's id shows.
        make: Makes a handle, as another process would have it.
        versions: How many versions a soak test publishes: fewer where a round trip is slow.
    """

    name: str
    make: Callable[[], Store]
    versions: int = 300
    _opened: list[Store] = field(default_factory=list)

    def open(self) -> Store:
        """A handle that is closed when the test ends."""
        self._opened.append(self.make())
        return self._opened[-1]

    def close(self) -> None:
        for store in self._opened:
            store.close()
        self._opened.clear()

    def expiries(self, keys: Keys) -> dict[str, float]:
        """Every key of a namespace, and the seconds until it expires (-1: never)."""
        store = self.open()
        if isinstance(store, MemoryStore):
            return {
                key: store._expiry.get(key, -1 + store._clock()) - store._clock()
                for key in store._values
                if f"{{{keys.namespace}}}" in key
            }
        names = matching(store, f"rss:{{{keys.namespace}}}:*")
        return {n.decode(): run(store, ("PTTL", n))[0] / 1000 for n in names}


def run(store: Store, *commands: tuple[object, ...]) -> list:  # type: ignore[type-arg]
    """Raw commands on the server of a store."""
    assert isinstance(store, RedisStore)
    return store._run("test", commands, WAIT)


def matching(store: Store, pattern: str) -> list[bytes]:
    """The keys of this form, on every node if it is a cluster."""
    assert isinstance(store, RedisStore)
    if not store._cluster:
        (names,) = run(store, ("KEYS", pattern))
        return list(names)
    found = []
    for address in store._cluster:
        node = RedisStore(partial(store._make, address), "node")
        found += matching(node, pattern)
        node.close()
    return found


def said(error: BaseException) -> str:
    """All that a traceback of this error would say."""
    texts = []
    link: BaseException | None = error
    while link is not None:
        texts += [str(link), repr(link)]
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return "\n".join(texts)


def _memory(stack: ExitStack) -> Callable[[], Store]:
    store = MemoryStore("contract")
    return lambda: store


def _fakeredis(stack: ExitStack, protocol: int = 2) -> Callable[[], Store]:
    server = fakeredis.FakeServer()
    return lambda: RedisStore.from_client(
        fakeredis.FakeRedis(server=server, protocol=protocol), "fakeredis"
    )


def _fake_tcp(stack: ExitStack, protocol: int = 2) -> Callable[[], Store]:
    server = stack.enter_context(FakeStateServer())
    return lambda: open_store(f"{server.url}?protocol={protocol}")


def _embedded(stack: ExitStack, protocol: int = 2, tcp: bool = False) -> Callable[[], Store]:
    server = stack.enter_context(_server())
    host = f"redis://127.0.0.1:{_port_of(server)}" if tcp else server.url
    return lambda: open_store(f"{host}?protocol={protocol}")


class _Hidden:
    """A socket that is none to those who ask whether it is: redis-py's own means must do."""

    def __init__(self, sock: Any) -> None:
        self._sock = sock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


class _Ordinary(redis.UnixDomainSocketConnection):
    def _connect(self) -> Any:
        return _Hidden(super()._connect())


def _ordinary(stack: ExitStack, protocol: int = 2) -> Callable[[], Store]:
    server = stack.enter_context(_server())

    def make() -> redis.ConnectionPool:
        endpoint = parse_url(f"{server.url}?protocol={protocol}")
        pool = make_pool(endpoint, connect_timeout_s=WAIT)
        pool.connection_class = _Ordinary
        return pool

    return lambda: RedisStore(make, "ordinary")


def _debian_redis(stack: ExitStack) -> Callable[[], Store]:
    server = stack.enter_context(start(redis_binary()))
    return lambda: open_store(server.url)


def _debian_redis_tls(stack: ExitStack, protocol: int = 2) -> Callable[[], Store]:
    authority = Authority(Path(stack.enter_context(tempfile.TemporaryDirectory())))
    address = stack.enter_context(tls_server(authority, authority.issue("127.0.0.1")))
    asked = options(protocol=protocol, ssl_ca_certs=authority.file)
    return lambda: open_store(f"rediss://{address}{asked}")


def _cluster(stack: ExitStack, protocol: int = 2) -> Callable[[], Store]:
    nodes = stack.enter_context(cluster())
    return lambda: open_store(nodes.url(protocol=protocol))


@contextmanager
def _server() -> Iterator[EmbeddedServer]:
    valkey_binary()
    with EmbeddedServer(host="127.0.0.1", port=free_port()) as server:
        yield server


def _port_of(server: EmbeddedServer) -> int:
    return int(server._config.read_text().split("port ")[1].split()[0])


MAKERS: dict[str, Callable[[ExitStack], Callable[[], Store]]] = {
    "memory": _memory,
    "fakeredis": _fakeredis,
    "fakeredis-resp3": lambda stack: _fakeredis(stack, 3),
    "fake-tcp": _fake_tcp,
    "fake-tcp-resp3": lambda stack: _fake_tcp(stack, 3),
    "valkey-tcp": lambda stack: _embedded(stack, tcp=True),
    "valkey-tcp-resp3": lambda stack: _embedded(stack, 3, tcp=True),
    "valkey-unix": _embedded,
    "valkey-unix-resp3": lambda stack: _embedded(stack, 3),
    "valkey-ordinary": _ordinary,
    "valkey-ordinary-resp3": lambda stack: _ordinary(stack, 3),
    "valkey-cluster": _cluster,
    "valkey-cluster-resp3": lambda stack: _cluster(stack, 3),
    "debian-redis": _debian_redis,
    "debian-redis-tls": _debian_redis_tls,
    "debian-redis-tls-resp3": lambda stack: _debian_redis_tls(stack, 3),
}


@pytest.fixture(autouse=True)
def _from_the_store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """No node's cache, unless a test asks for the fixture `node_cache`.

    The tests here are about stores: what one holds, loses, damages, and how it sends it. A learner
    and a reader of one process would hand each other large components in shared memory, and a test
    would pass whatever the store did with them.
    """
    if "node_cache" not in request.fixturenames:
        for user in ("publisher", "subscriber"):
            monkeypatch.setattr(f"redis_state_sync.{user}.open_node_cache", lambda **_: None)


@pytest.fixture
def node_cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder that a node's cache makes its own in, of this process and those it starts."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="rss-") as folder:
        monkeypatch.setenv(FOLDER_ENV, folder)
        yield Path(folder)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every store, but for those whose names begin as a test's marker `not_for` says."""
    if "_place" in metafunc.fixturenames:
        left_out = [n for m in metafunc.definition.iter_markers("not_for") for n in m.args]
        names = [name for name in MAKERS if not name.startswith(tuple(left_out))]
        metafunc.parametrize("_place", names, indirect=True, scope="session")


@pytest.fixture(scope="session")
def _place(request: pytest.FixtureRequest) -> Iterator[Backend]:
    name = str(request.param)
    with ExitStack() as stack:
        yield Backend(name, MAKERS[name](stack), 20 if name.startswith("fake-tcp") else 300)


@pytest.fixture
def backend(_place: Backend) -> Iterator[Backend]:
    """One store after the other; the servers live as long as the session."""
    yield _place
    _place.close()


@pytest.fixture
def store(backend: Backend) -> Store:
    """A handle on the store."""
    return backend.open()


@pytest.fixture
def keys() -> Keys:
    """A namespace that no other test has."""
    return Keys(f"contract/{next(_numbers)}")
