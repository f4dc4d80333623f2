"""A real server at its limits: full, evicting, with small values only; and what it is asked for."""

from __future__ import annotations

import re
import time
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from redis_state_sync import StatePublisher, StateSubscriber, errors, open_store
from redis_state_sync.embedded import EmbeddedServer, find_server
from redis_state_sync.errors import SettingsError
from redis_state_sync.events import Event, Failed
from redis_state_sync.manifest import Manifest
from redis_state_sync.store import Store
from redis_state_sync.testing import skip_or_fail
from tests.contract.conftest import WAIT, run
from tests.contract.servers import redis_binary
from tests.contract.servers import start as start_binary

Start = Callable[..., EmbeddedServer]
BASIC = {
    *("xadd", "xrevrange", "xdel", "expire", "set", "get", "unlink", "time"),
    *("hset", "hget", "hdel", "hgetall"),
}
MB = 1 << 20


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a server with further lines of configuration."""
    try:
        find_server()
    except SettingsError as error:
        skip_or_fail(str(error))
    servers: list[EmbeddedServer] = []

    def _start(*config: str) -> EmbeddedServer:
        servers.append(EmbeddedServer(config=config))
        return servers[-1]

    yield _start
    for server in servers:
        server.stop()


def patient(server: EmbeddedServer) -> Store:
    """A store that waits for what comes late on a busy machine."""
    return open_store(server.url, stall_timeout_s=WAIT)


def noise(number: int, megabytes: int = 5) -> dict[str, Any]:
    """A state that has no byte in common with another one."""
    size = megabytes * MB // 8
    return {"rl_module/p": np.random.default_rng(number).random(size), "number": number}


def test_a_full_server_takes_new_versions(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    """Where four versions do not fit older ones go, and every new one is stored: C61."""
    server = start("maxmemory 24mb", "maxmemory-policy noeviction")
    publisher = StatePublisher(open_store(server.url), "n", history=4)
    subscriber = StateSubscriber(open_store(server.url), "n", poll_timeout_s=WAIT)
    for number in range(8):
        publisher.publish(noise(number)).wait(WAIT)
        snapshot = subscriber.refresh(lambda s: None)
        assert snapshot is not None
        assert snapshot["number"] == number
    assert publisher.stats.failures.keys() == {"full"}
    assert "older versions of namespace 'n'" in caplog.text
    publisher.close()
    subscriber.close()


def test_a_state_that_never_fits(start: Start) -> None:
    """A version too large for the server is a typed error, and the newest one stays whole: C61."""
    server = start("maxmemory 24mb", "maxmemory-policy noeviction")
    publisher = StatePublisher(patient(server), "n", history=4)
    publisher.publish(noise(1)).wait(WAIT)
    with pytest.raises(errors.StoreFullError, match="raise maxmemory, or keep a shorter history"):
        publisher.publish(noise(2, 40)).wait(WAIT, fail_fast=True)
    snapshot = StateSubscriber(patient(server), "n").fetch(timeout=WAIT)
    assert snapshot is not None
    assert snapshot["number"] == 1
    publisher.publish(noise(3)).wait(WAIT)  # What was uploaded in vain is gone.
    publisher.close()


def test_an_evicting_server(start: Start) -> None:
    """Evicted blobs leave readers as they are, are named, and come back by themselves: C63."""
    server = start("maxmemory 30mb", "maxmemory-policy allkeys-lru")
    store = open_store(server.url)
    publisher = StatePublisher(open_store(server.url), "n", history=1, heartbeat_s=0.05)
    events: list[Event] = []
    holder = StateSubscriber(
        open_store(server.url), "n", poll_timeout_s=WAIT, observers=[events.append]
    )
    first = publisher.publish(noise(1)).wait(WAIT)
    holder.refresh(lambda s: None)
    for number in range(12):  # A neighbour needs the memory.
        run(store, ("SET", f"neighbour/{number}", bytes(4 * MB)))
        holder.refresh(lambda s: None)
    run(store, ("DEL", *(f"neighbour/{n}" for n in range(12))))
    newcomer = StateSubscriber(open_store(server.url), "n", poll_timeout_s=WAIT)
    assert newcomer.wait_for(lambda s: None, timeout=WAIT) >= first
    assert holder.held is not None
    # Behind: versions were evicted as well, and looked for just then.
    assert {e.category for e in events if isinstance(e, Failed)} <= {"blob_missing", "behind"}
    publisher.close()


@pytest.mark.parametrize("limit", ["proto-max-bulk-len", "client-query-buffer-limit"])
def test_a_server_that_takes_small_values_only(start: Start, limit: str) -> None:
    """What the server's limit on values refuses is an error that names the limit: C60."""
    server = start(f"{limit} 1mb")
    publisher = StatePublisher(open_store(server.url), "n", heartbeat_s=3600)
    with pytest.raises(errors.StoreUnavailableError, match=rf"{limit}.*4194304 bytes"):
        publisher.publish(noise(1)).wait(WAIT, fail_fast=True)
    # One within the limit replaces it, and is stored.
    publisher.publish({"rl_module/p": 0, "number": 2}).wait(WAIT)
    publisher.close()


def test_a_server_that_holds_little_for_a_client() -> None:
    """A server that hangs up on large replies is an error that names its limit, and heals."""
    # Valkey sends what it stores, and holds nothing.
    with start_binary(redis_binary(), "client-output-buffer-limit normal 1mb 1mb 1") as server:
        fetch_beyond_the_limit(server)


def fetch_beyond_the_limit(server: EmbeddedServer) -> None:
    store = open_store(server.url)
    publisher = StatePublisher(patient(server), "n", heartbeat_s=3600)
    publisher.publish(noise(1, 60)).wait(WAIT)
    subscriber = StateSubscriber(patient(server), "n", poll_timeout_s=WAIT)
    with pytest.raises(errors.StoreUnavailableError, match="client-output-buffer-limit") as caught:
        subscriber.fetch(timeout=WAIT)
    assert "TLS" not in str(caught.value)
    run(store, ("CONFIG", "SET", "client-output-buffer-limit", "normal 0 0 0"))
    assert subscriber.fetch(timeout=WAIT) is not None
    publisher.close()
    store.close()


def test_only_basic_commands(start: Start) -> None:
    """No MULTI, WATCH, script, Pub/Sub, KEYS or FLUSH is ever sent: C79 C86 C87 C102 C107 C109."""
    server = start()
    store = open_store(server.url)
    # A server asks itself a few things while it starts.
    before = commands(store)
    for round_ in range(2):
        publisher = StatePublisher(open_store(server.url), "n", history=1, heartbeat_s=0.02)
        subscriber = StateSubscriber(open_store(server.url), "n", poll_timeout_s=WAIT)
        for number in range(3):
            publisher.publish(noise(10 * round_ + number, 1)).wait(WAIT)
            subscriber.refresh(lambda s: None)
        publisher.flush(WAIT)
        manifest = Manifest.decode(store.newest(publisher.keys, timeout=WAIT)[0].manifest)
        store.drop(publisher.keys, [], list(manifest.digests()), timeout=WAIT)  # It heals.
        later = type(publisher.last_version)(publisher.generation, 4)
        subscriber.wait_for(lambda s: None, version=later, timeout=WAIT)
        publisher.close()
        subscriber.close()
    assert commands(store) - before - {"info"} == BASIC
    store.close()


def commands(store: Any) -> set[str]:
    (reply,) = run(store, ("INFO", "commandstats"))
    return set(re.findall(r"^cmdstat_(\S+?):", bytes(reply).decode(), re.M))


def test_connections_are_few(start: Start) -> None:
    """A hundred readers hold a connection each, and none after they are closed: C84."""
    server = start()
    store = open_store(server.url)
    publisher = StatePublisher(open_store(server.url), "n", heartbeat_s=3600)
    publisher.publish({"number": 1}).wait(WAIT)
    readers = [
        StateSubscriber(open_store(server.url), "n", poll_timeout_s=WAIT) for _ in range(100)
    ]
    for _ in range(3):
        for reader in readers:
            reader.refresh(lambda s: None)
    assert all(reader.held == publisher.last_version for reader in readers)
    assert clients(store) == 102
    for reader in readers:
        reader.close()
    publisher.close()
    deadline = time.monotonic() + WAIT
    while clients(store) > 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert clients(store) == 1
    store.close()


def clients(store: Any) -> int:
    (reply,) = run(store, ("INFO", "clients"))
    return int(bytes(reply).split(b"connected_clients:")[1].split()[0])


def test_restarted_readers_are_forgotten(start: Start) -> None:
    """Of readers that come and go under ever new names, as restarted EnvRunners do, only those of
    the last `ttl_s` are known to the server: C66, C67.
    """
    server = start()
    store = open_store(server.url)
    publisher = StatePublisher(open_store(server.url), "n", ttl_s=2.0, heartbeat_s=0.02)
    publisher.publish({"number": 1}).wait(WAIT)
    known = []
    for number in range(200):
        reader = StateSubscriber(
            open_store(server.url), "n", name=f"host:{number}", poll_timeout_s=WAIT
        )
        assert reader.refresh(lambda s: None)
        reader.close()
        known.append(len(readers(store)))
    living = StateSubscriber(open_store(server.url), "n", name="host:living", poll_timeout_s=WAIT)
    deadline, number = time.monotonic() + WAIT, 1
    while readers(store) != {b"host:living"} and time.monotonic() < deadline:
        number += 1
        publisher.publish({"number": number}).wait(WAIT)
        living.refresh(lambda s: None)
        time.sleep(0.05)
    assert readers(store) == {b"host:living"}
    assert max(known) > 1
    assert publisher.stats.failures == {}
    publisher.close()
    living.close()
    store.close()


def readers(store: Any) -> set[bytes]:
    return set(run(store, ("HKEYS", "rss:{n}:readers"))[0])


def test_fetching_takes_little_memory(start: Start) -> None:
    """Fetching a state takes at most twice its size, in pieces or not: C69."""
    server = start()
    publisher = StatePublisher(open_store(server.url), "n", heartbeat_s=3600)
    size = 32 * MB
    publisher.publish({"rl_module/p": np.zeros(size, np.uint8)}).wait(WAIT)
    subscriber = StateSubscriber(open_store(server.url), "n")
    tracemalloc.start()
    try:
        snapshot = subscriber.fetch(timeout=WAIT)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert snapshot is not None
    assert peak < 2.2 * size
    publisher.close()
    subscriber.close()
