"""The pytest plugin for other projects."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import numpy as np
import pytest

from redis_state_sync import StatePublisher, StateSubscriber, StoreError, open_store
from redis_state_sync.errors import StoreTimeoutError
from redis_state_sync.keys import Keys
from redis_state_sync.redis_store import RedisStore
from redis_state_sync.testing import (
    FAKE_SERVER_LIMIT_BYTES,
    EmbeddedServer,
    FakeStateServer,
    ScriptedStore,
    skip_or_fail,
)
from redis_state_sync.testing.fake_server import import_fakeredis
from redis_state_sync.version import Version
from tests.unit.states import WAIT, Reader, number_in, publishing, state

pytest_plugins = ["pytester"]


@pytest.mark.parametrize("attempt", [1, 2])
def test_each_test_has_a_store_of_its_own(redis_state_store: RedisStore, attempt: int) -> None:
    """What one test stored another one does not see: C105."""
    keys = Keys("leak")
    assert redis_state_store.newest(keys, timeout=WAIT) == []
    redis_state_store.append(keys, Version(1, attempt), b"m", ttl_s=60, timeout=WAIT)


def test_fakes_are_bounded_like_servers(redis_state_store: RedisStore) -> None:
    """Settings of time apply to every call on a fake store, whatever its client ignores: C112."""
    reader = StateSubscriber(redis_state_store, "n", poll_timeout_s=0.5, transfer_timeout_s=5.0)
    with publishing(redis_state_store, transfer_timeout_s=5.0, connect_timeout_s=1.0) as publisher:
        version = publisher.publish(state(1)).wait(WAIT)
        assert reader.wait_for(lambda s: None, timeout=WAIT) == version
        with pytest.raises(StoreTimeoutError):
            redis_state_store.time_ms(timeout=0.0)


def test_other_processes_reach_the_fake_server(redis_state_fake_server: FakeStateServer) -> None:
    """A state published here is read by a process that knows the URL only."""
    with publishing(open_store(redis_state_fake_server.url)) as publisher:
        publisher.publish(state(7)).wait(WAIT)
        code = """
            import sys
            from redis_state_sync import StateSubscriber, open_store
            snapshot = StateSubscriber(open_store(sys.argv[1]), "n").fetch(timeout=20)
            print(snapshot["counters"]["steps"])
        """
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code), redis_state_fake_server.url],
            capture_output=True, text=True, env={"PYTHONPATH": ":".join(p for p in sys.path if p)},
        )  # fmt: skip
    assert (done.stdout.strip(), done.returncode) == ("7", 0), done.stderr


@pytest.mark.parametrize("components", [1, 8])
def test_the_fake_servers_limit(components: int) -> None:
    """A state above the limit, in one part or many, is refused with limit and remedy."""
    size = 3 * FAKE_SERVER_LIMIT_BYTES // 2 // components
    with FakeStateServer() as server:
        publisher = StatePublisher(open_store(server.url), "n", heartbeat_s=3600)
        with pytest.raises(
            StoreError, match=f"up to {FAKE_SERVER_LIMIT_BYTES}.*redis_state_server"
        ):
            publisher.publish(
                {f"c{i}": np.full(size, i, np.uint8) for i in range(components)}
            ).wait(WAIT, fail_fast=True)
        assert len(server.refused) == 1
        publisher.close(0)


def test_the_fake_server_up_to_its_limit(redis_state_fake_server: FakeStateServer) -> None:
    """A state just below the limit goes through, whatever its bytes are."""
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, FAKE_SERVER_LIMIT_BYTES - 1000, np.uint8)
    with publishing(open_store(redis_state_fake_server.url)) as publisher:
        publisher.publish({"rl_module/p": noise}).wait(WAIT)
        snapshot = StateSubscriber(open_store(redis_state_fake_server.url), "n").fetch(timeout=WAIT)
    assert snapshot is not None
    assert (snapshot["rl_module/p"] == noise).all()


def test_the_fixture_fails_a_test_above_the_limit(pytester: pytest.Pytester) -> None:
    """A test whose state was refused fails when it ends, also if it swallowed the error."""
    pytester.makeconftest('pytest_plugins = ["redis_state_sync.testing"]')
    pytester.makepyfile(
        """
        from redis_state_sync import StatePublisher, open_store

        def test_swallows(redis_state_fake_server):
            publisher = StatePublisher(open_store(redis_state_fake_server.url), "n")
            publisher.publish({"c": bytes(200_000)})
            publisher.close(5)
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*takes up to 100000*redis_state_server*pip install*"])


def test_kill_and_restart(redis_state_server: EmbeddedServer) -> None:
    """The real server can be killed and restarted in the middle of a test."""
    reader = Reader(open_store(redis_state_server.url), poll_timeout_s=WAIT)
    with publishing(open_store(redis_state_server.url), heartbeat_s=0.02) as publisher:
        publisher.publish(state(1)).wait(WAIT)
        assert reader.refresh() is not None
        redis_state_server.kill()
        handle = publisher.publish(state(2))
        assert reader.refresh() is None
        redis_state_server.start()
        handle.wait(WAIT)
        snapshot = reader.refresh()
    assert snapshot is not None
    assert number_in(snapshot) == 2


def test_skip_or_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is missing skips on a laptop and fails in CI."""
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="needs a server"):
        skip_or_fail("needs a server")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match=r"needs a server.*CI is set"):
        skip_or_fail("needs a server")


@pytest.mark.parametrize("old", ["2.40.0", "2.9", "1.10.1"])
def test_an_old_fakeredis(monkeypatch: pytest.MonkeyPatch, old: str) -> None:
    """A fakeredis that differs from a server where it counts is refused by its version."""
    monkeypatch.setattr("redis_state_sync.testing.fake_server.version", lambda _: old)
    with pytest.raises(ImportError, match=rf"fakeredis {old} .*redis-state-sync\[testing\]"):
        import_fakeredis()


@pytest.mark.parametrize("new", ["2.41.0", "2.41.1rc1", "3.0"])
def test_a_new_fakeredis(monkeypatch: pytest.MonkeyPatch, new: str) -> None:
    """Newer ones are taken."""
    monkeypatch.setattr("redis_state_sync.testing.fake_server.version", lambda _: new)
    assert import_fakeredis().FakeRedis


def test_without_fakeredis(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing fakeredis names the line that installs it."""
    monkeypatch.setitem(sys.modules, "fakeredis", None)
    with pytest.raises(ImportError, match=r"pip install 'redis-state-sync\[testing\]'"):
        FakeStateServer()


def test_scripted_store(redis_state_scripted_store: ScriptedStore) -> None:
    """Failures, lost replies and delays come as often as scripted, for the operation named."""
    store, keys = redis_state_scripted_store, Keys("n")
    store.fail_next("newest", StoreTimeoutError("scripted"), times=2)
    for _ in range(2):
        with pytest.raises(StoreTimeoutError, match="scripted"):
            store.newest(keys, timeout=1)
    assert store.newest(keys, timeout=1) == []
    store.lose_reply("append", StoreTimeoutError("lost"))
    with pytest.raises(StoreTimeoutError, match="lost"):
        store.append(keys, Version(1, 1), b"m", ttl_s=60, timeout=1)
    assert [e.version for e in store.newest(keys, timeout=1)] == [Version(1, 1)]
    store.delay("pins", 0.02)
    assert store.pins(keys, timeout=1) == {}
    with pytest.raises(StoreTimeoutError):
        store.pins(keys, timeout=0.001)
    assert store.calls == {"newest": 4, "append": 1, "pins": 2}


def test_scripted_blobs(redis_state_scripted_store: ScriptedStore) -> None:
    """A corrupted blob differs in one bit, a lost one is None, the others stay."""
    store, keys = redis_state_scripted_store, Keys("n")
    store.put_blobs(keys, {"a": b"abc", "b": b"abc", "c": b"abc"}, ttl_s=60, timeout=1)
    store.corrupt("b")
    store.lose_blob("c")
    assert store.get_blobs(keys, ["a", "b", "c"], timeout=1) == [b"abc", b"acc", None]


@pytest.mark.parametrize("operation", ["poll", "close", "_call", "", "__init__"])
def test_scripts_name_real_operations(
    redis_state_scripted_store: ScriptedStore, operation: str
) -> None:
    """A misspelt operation is refused: a script that never runs would test nothing."""
    with pytest.raises(ValueError, match="not an operation"):
        redis_state_scripted_store.fail_next(operation, StoreTimeoutError("x"))
    with pytest.raises(ValueError, match="not an operation"):
        redis_state_scripted_store.delay(operation, 1)


def test_waiting_for_calls_ends(redis_state_scripted_store: ScriptedStore) -> None:
    """Waiting for a call that never comes fails the test instead of hanging it."""
    with pytest.raises(AssertionError, match="newest was called 0 times"):
        redis_state_scripted_store.wait_for_calls("newest", 1, timeout=0.01)
