"""From settings to a store."""

from __future__ import annotations

import pytest

from redis_state_sync import SettingsError, open_store
from redis_state_sync.memory_store import MemoryStore
from redis_state_sync.redis_store import RedisStore


def test_memory_stores_are_shared_by_name() -> None:
    """Within a process one name is one store, and another name another."""
    assert open_store("memory://test-a") is open_store("memory://test-a")
    assert open_store("memory://test-a") is not open_store("memory://test-b")
    assert isinstance(open_store("memory://test-a"), MemoryStore)


def test_redis_stores_do_not_connect_when_opened() -> None:
    """Opening a store at an address where nothing listens is no error yet, and hangs nowhere."""
    store = open_store("redis://127.0.0.1:1")
    assert isinstance(store, RedisStore)
    assert store.describe() == "redis://127.0.0.1:1/0"


def test_the_environment_names_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a URL REDIS_STATE_SYNC_URL counts; without both the error names it: C33."""
    monkeypatch.setenv("REDIS_STATE_SYNC_URL", "memory://from-env")
    assert open_store().describe() == "memory://from-env"
    assert open_store("memory://mine").describe() == "memory://mine"
    monkeypatch.delenv("REDIS_STATE_SYNC_URL")
    with pytest.raises(SettingsError, match="REDIS_STATE_SYNC_URL"):
        open_store()


def test_embedded_is_for_rllib() -> None:
    """`embedded://` outside of RLlib says what to use instead."""
    with pytest.raises(SettingsError, match="EmbeddedServer"):
        open_store("embedded://")


def test_settings_are_checked() -> None:
    """An unknown or wrong setting is refused when the store is opened."""
    with pytest.raises(SettingsError, match="unknown setting"):
        open_store("memory://x", timeout=3)
    with pytest.raises(SettingsError, match="history"):
        open_store("memory://x", history=0)
