"""Several pinned versions held at once; over every store."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from redis_state_sync import (
    History,
    SettingsError,
    SnapshotPool,
    StoreError,
    UnknownVersionError,
    Version,
)
from redis_state_sync.errors import IntegrityError
from redis_state_sync.keys import Keys
from redis_state_sync.memory_store import MemoryStore
from redis_state_sync.testing import ScriptedStore
from tests.contract.conftest import WAIT, Backend, run
from tests.contract.test_history import history_of, learner, number_in, published

ROOT = Path(__file__).resolve().parents[2]


class Clock:
    """Goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


Pinned = Callable[..., Version]


@pytest.fixture
def pinned(backend: Backend, keys: Keys) -> Iterator[Pinned]:
    """Publishes a state and gives it names."""
    with learner(backend, keys) as publisher:
        history = history_of(backend, keys)

        def pin(number: int, *names: str) -> Version:
            version = published(publisher, number)
            for name in names:
                history.pin(name, version)
            return version

        yield pin


def pool_of(backend: Backend, keys: Keys, clock: Clock, **settings: Any) -> SnapshotPool:
    return SnapshotPool(history_of(backend, keys), "league/", clock=clock, **settings)


def test_holds_what_is_pinned(backend: Backend, keys: Keys, clock: Clock, pinned: Pinned) -> None:
    """Each pin's own version is what it stands for, long after the learner went on."""
    versions = {f"league/{n}": pinned(n, f"league/{n}") for n in (1, 2, 3)}
    pinned(4, "other")
    for n in range(5, 9):
        pinned(n)
    pool = pool_of(backend, keys, clock)
    assert pool.names() == sorted(versions)
    for _ in range(2):
        for name, version in versions.items():
            assert pool.get(name).version == version
            assert number_in(pool.get(name)) == int(name[-1])
    assert pool.held == versions
    with pytest.raises(UnknownVersionError, match="other"):
        pool.get("other")


def test_what_is_held_is_not_fetched_again(
    backend: Backend, keys: Keys, clock: Clock, pinned: Pinned
) -> None:
    """A snapshot is fetched once, and stays what it is while others are fetched."""
    for n in (1, 2):
        pinned(n, f"league/{n}")
    store = ScriptedStore(backend.open())
    pool = SnapshotPool(History(store, keys.namespace, timeout_s=WAIT), "league/", clock=clock)
    first = pool.get(pool.names()[0])
    calls = store.calls.total()
    assert pool.get("league/1") is first
    assert pool.names() == ["league/1", "league/2"]
    assert store.calls.total() == calls
    for n in range(3, 9):
        pinned(n, f"league/{n}")
    clock.now += 1.0
    for name in pool.names():
        pool.get(name)
    assert number_in(first) == 1


def test_new_pins_are_found(backend: Backend, keys: Keys, clock: Clock, pinned: Pinned) -> None:
    """A pin that is made, or given anew, meanwhile is found by the next look."""
    pinned(1, "league/1")
    pool = pool_of(backend, keys, clock)
    assert number_in(pool.get(pool.names()[0])) == 1
    pinned(2, "league/1", "league/2")
    assert pool.names() == ["league/1"]
    clock.now += 1.0
    assert pool.names() == ["league/1", "league/2"]
    assert [number_in(pool.get(name)) for name in pool.names()] == [2, 2]


def test_a_pin_that_is_gone(backend: Backend, keys: Keys, clock: Clock, pinned: Pinned) -> None:
    """What was unpinned and dropped is an error that says so, and no name any more."""
    pinned(1, "league/1")
    pinned(2, "league/2")
    pool = pool_of(backend, keys, clock)
    assert pool.names() == ["league/1", "league/2"]
    history_of(backend, keys).unpin("league/1")
    for n in range(3, 7):
        pinned(n)
    with pytest.raises(UnknownVersionError, match=r"league/1.* is gone"):
        pool.get("league/1")
    assert pool.names() == ["league/2"]
    assert number_in(pool.get("league/2")) == 2
    history_of(backend, keys).unpin("league/2")
    assert number_in(pool.get("league/2")) == 2  # In memory, until the next look.
    clock.now += 1.0
    assert pool.names() == []
    with pytest.raises(UnknownVersionError):
        pool.get("league/2")
    assert pool.held == {}


def test_memory_is_bounded(backend: Backend, keys: Keys, clock: Clock, pinned: Pinned) -> None:
    """No more than so many are held; the one goes that was not asked for the longest."""
    for n in range(1, 5):
        pinned(n, f"league/{n}")
    pool = pool_of(backend, keys, clock, most=2)
    for name in ("league/1", "league/2", "league/1", "league/3"):
        assert name in pool.names()
        pool.get(name)
    assert sorted(pool.held) == ["league/1", "league/3"]
    assert number_in(pool.get("league/2")) == 2
    assert sorted(pool.held) == ["league/2", "league/3"]
    pool.close()
    assert pool.held == {}


def test_while_the_store_is_away(
    backend: Backend,
    keys: Keys,
    clock: Clock,
    pinned: Pinned,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What is held stays of use; what is not is an error; it is asked a twentieth of the time."""
    pinned(1, "league/1")
    pinned(2, "league/2")
    pool = pool_of(backend, keys, clock)
    first = pool.get(pool.names()[0])
    history = pool._history
    asked = 0

    def fail(*_: object, **__: object) -> Any:
        nonlocal asked
        asked += 1
        clock.now += 0.5
        raise StoreError("away")

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "redis_state_sync"):
        patch.setattr(history, "pins", fail)
        patch.setattr(history, "fetch", fail)
        clock.now += 1.0
        since = clock.now
        while clock.now < since + 100:
            assert pool.names() == ["league/1", "league/2"]
            assert pool.get("league/1") is first
            with pytest.raises(StoreError):
                pool.get("league/2")
            clock.now += 0.01
        assert 0.5 * asked <= 0.05 * (clock.now - since) + 0.5
        assert asked > 5
        assert len(caplog.records) == 1
    clock.now += 20
    assert pool.names() == ["league/1", "league/2"]
    assert number_in(pool.get("league/2")) == 2
    clock.now += 1
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "redis_state_sync"):
        patch.setattr(history, "pins", fail)
        assert pool.names() == ["league/1", "league/2"]
    assert len(caplog.records) == 2  # Another outage is news again.


def test_a_damaged_version(backend: Backend, keys: Keys, clock: Clock, pinned: Pinned) -> None:
    """A version whose bytes are not what they should be is refused, and the others are not."""
    pinned(1, "league/1")
    pinned(2, "league/2")
    store = backend.open()
    _, manifest = history_of(backend, keys).find("league/1")
    piece = manifest.components["rl_module/p"].pieces[0]
    key = keys.blob(piece.digest)
    if isinstance(store, MemoryStore):
        store._values[key] = bytes(piece.size)
    else:
        run(store, ("SET", key, bytes(piece.size)))
    pool = pool_of(backend, keys, clock)
    assert pool.names() == ["league/1", "league/2"]
    with pytest.raises(IntegrityError):
        pool.get("league/1")
    assert pool.names() == ["league/2"]
    assert number_in(pool.get("league/2")) == 2


@pytest.mark.parametrize(
    "wrong",
    [{"most": 0}, {"most": 1.5}, {"most": True}, {"look_every_s": -1.0}, {"look_every_s": "1"}],
)
def test_wrong_arguments(wrong: dict[str, Any]) -> None:
    """Wrong arguments are refused when they are given."""
    with pytest.raises(SettingsError):
        SnapshotPool(History(MemoryStore("x"), "a"), **wrong)
    with pytest.raises(SettingsError):
        SnapshotPool("league")  # type: ignore[arg-type]
