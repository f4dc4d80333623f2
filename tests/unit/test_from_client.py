"""Stores over clients that the user made."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import fakeredis
import pytest
import redis
import redis.asyncio

from redis_state_sync import SettingsError
from redis_state_sync.redis_store import RedisStore
from redis_state_sync.testing import EmbeddedServer
from tests.unit.states import WAIT, Reader, number_in, publishing, state


def fake(**options: Any) -> redis.Redis:
    server = fakeredis.FakeServer(**{k: options.pop(k) for k in ("version", "server_type")
                                     if k in options})  # fmt: skip
    return fakeredis.FakeRedis(server=server, **options)


CLIENTS: dict[str, Callable[[str], Any]] = {
    "plain": lambda path: redis.Redis(unix_socket_path=path),
    "decoding": lambda path: redis.Redis(unix_socket_path=path, decode_responses=True),
    "decoding, RESP3": lambda path: redis.Redis(
        unix_socket_path=path, decode_responses=True, protocol=3
    ),
    "latin-1": lambda path: redis.Redis(unix_socket_path=path, encoding="latin-1"),
    "one connection": lambda path: redis.Redis(
        unix_socket_path=path, single_connection_client=True, max_connections=1
    ),
    "blocking pool": lambda path: redis.Redis(
        connection_pool=redis.BlockingConnectionPool(
            max_connections=1, connection_class=redis.UnixDomainSocketConnection, path=path
        )
    ),
    "fake": lambda _: fake(),
    "fake, decoding": lambda _: fake(decode_responses=True),
    "fake, decoding, RESP3": lambda _: fake(decode_responses=True, protocol=3),
    "fake Valkey": lambda _: fake(server_type="valkey"),
    "fake Redis 6": lambda _: fake(version=(6,)),
    "FakeStrictRedis": lambda _: fakeredis.FakeStrictRedis(server=fakeredis.FakeServer()),
}


@pytest.mark.parametrize("make", CLIENTS.values(), ids=CLIENTS.keys())
def test_any_synchronous_client(
    make: Callable[[str], Any], redis_state_server: EmbeddedServer
) -> None:
    """However a client decodes, pools or connects, states arrive as they are."""
    client = make(str(redis_state_server.socket_path))
    store = RedisStore.from_client(client)
    reader = Reader(store)
    with publishing(store, history=1) as publisher:
        for number in (1, 2):
            publisher.publish(state(number)).wait(WAIT)
            snapshot = reader.refresh()
            assert snapshot is not None
            assert number_in(snapshot) == number
        assert publisher.flush(WAIT) == snapshot.version
        assert publisher.stats.failures == {}
        assert store.pins(publisher.keys, timeout=WAIT) == {}
    client.close()


@pytest.mark.parametrize(
    "client",
    ["redis://h", None, redis.asyncio.Redis(), fakeredis.FakeAsyncRedis(), redis.ConnectionPool()],
    ids=["url", "none", "asyncio", "fake asyncio", "pool"],
)
def test_what_is_no_synchronous_client(client: Any) -> None:
    """Anything else is refused at once, by what it is."""
    with pytest.raises(SettingsError, match=rf"not a .*{type(client).__name__}: no asyncio"):
        RedisStore.from_client(client)


def test_it_does_not_travel() -> None:
    """A store over a client says why it can not be pickled, and what to do."""
    with pytest.raises(TypeError, match=r"can not travel.*open_store\(url\)"):
        pickle.dumps(RedisStore.from_client(fake()))
