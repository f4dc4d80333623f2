"""What may be pickled and copied, as Ray and multiprocessing do: all but live things."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from redis_state_sync import (
    Settings,
    StateSubscriber,
    Version,
    errors,
    events,
    open_store,
)
from redis_state_sync.credentials import with_password
from redis_state_sync.memory_store import MemoryStore
from redis_state_sync.publisher import StatePublisher
from redis_state_sync.redis_store import RedisStore
from tests.unit.states import WAIT, Reader, number_in, publishing, state

WAYS: list[Callable[[Any], Any]] = [
    copy.copy,
    copy.deepcopy,
    *(lambda v, p=p: pickle.loads(pickle.dumps(v, protocol=p)) for p in (2, 4, 5)),
]
way = pytest.mark.parametrize(
    "way", WAYS, ids=["copy", "deepcopy", "pickle2", "pickle4", "pickle5"]
)

ERRORS = sorted(
    (c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, Exception)),
    key=lambda c: c.__name__,
)


def test_all_errors_are_ours() -> None:
    """Every error class is looked at below."""
    assert errors.RedisStateSyncError in ERRORS
    assert len(ERRORS) > 20
    assert all(issubclass(c, errors.RedisStateSyncError) for c in ERRORS)


@way
@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_errors(way: Callable[[Any], Any], kind: type[Exception]) -> None:
    """Every error keeps class, message, category and details: Ray pickles what an actor raises."""
    error: Any = kind("what it was about: 'ä'")
    if hasattr(kind, "digest"):
        error.digest = "0" * 32
    other = way(error)
    assert type(other) is kind
    assert str(other) == str(error)
    assert other.args == error.args
    assert other.category == error.category
    assert vars(other) == vars(error)


def test_an_error_leaves_its_frames_behind() -> None:
    """A pickled error holds neither frames nor the error that caused it: no state, no secret."""
    try:
        try:
            raise ConnectionError("the password was geheim")
        except ConnectionError as error:
            raise errors.StoreUnavailableError("no answer") from error
    except errors.StoreUnavailableError as error:
        data = pickle.dumps(error)
    assert b"geheim" not in data
    assert pickle.loads(data).__cause__ is None


EVENTS = [
    events.Published(Version(1, 2), 3, 4, 0.5),
    events.Polled(None, 0.5),
    events.Fetched(Version(1, 2), 3, 0, 0.5),
    events.Applied(Version(1, 2), 0.5),
    events.Failed("poll", "network", "no answer"),
    events.Stale(Version(1, 2), 0.5),
    events.Claimed(7),
    events.Dropped(2),
    events.Looked(0.5),
    events.Recovered("publish"),
    events.Pushed(Version(1, 2)),
]


@way
@pytest.mark.parametrize("value", [*EVENTS, Version(2**64 - 1, 0), Settings(url="redis://h")])
def test_values(way: Callable[[Any], Any], value: Any) -> None:
    """Events, versions and settings come back equal, and as fixed as they were: C89, C91."""
    other = way(value)
    assert other == value
    assert type(other) is type(value)
    assert hash(other) == hash(value)


def test_every_event_is_tried() -> None:
    """No event is left out above."""
    assert {type(event) for event in EVENTS} == set(events.Event.__args__)  # type: ignore[attr-defined]


@way
def test_snapshots(way: Callable[[Any], Any]) -> None:
    """A snapshot can be handed on: version, manifest, changes and every component are the same."""
    store = MemoryStore()
    with publishing(store) as publisher:
        publisher.publish(state(3), weights_seq_no=7).wait(WAIT)
        snapshot = Reader(store).refresh()
    assert snapshot is not None
    other = way(snapshot)
    assert number_in(other) == 3
    assert (other.version, other.manifest, other.changed) == (
        snapshot.version,
        snapshot.manifest,
        snapshot.changed,
    )
    assert other.weights_seq_no == 7
    assert list(other) == list(snapshot)
    # Each look-up decodes anew: what one holder does to it the other does not see.
    other["rl_module/p"]["w"][:] = 0
    assert np.array_equal(snapshot["rl_module/p"]["w"], other["rl_module/p"]["w"])


@way
def test_stores_and_readers(way: Callable[[Any], Any]) -> None:
    """A store or reader on Redis arrives with its settings and without its connection: C89, C91."""
    store = open_store("unix:///run/nowhere.sock", stall_timeout_s=0.25)
    other = way(store)
    assert isinstance(other, RedisStore)
    assert other is not store
    assert other.describe() == "unix:///run/nowhere.sock"
    assert other._stall_timeout_s == 0.25
    assert other._exchange is not store._exchange  # type: ignore[attr-defined]
    reader = way(StateSubscriber(store, "n", writer="w", name="me"))
    assert (reader.keys.namespace, reader.writer, reader.name) == ("n", "w", "me")
    assert reader._own_lock is not StateSubscriber(store, "n")._own_lock


def test_a_pickled_store_holds_no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store or reader takes the password from the environment of where it arrives: C96."""
    url = "redis://me:geheim@127.0.0.1:7/3"
    monkeypatch.setenv("REDIS_STATE_SYNC_URL", url)
    store = open_store()
    data = pickle.dumps((store, StateSubscriber(store, "n")))
    assert b"geheim" not in data
    assert password_of(pickle.loads(data)[0]) == "geheim"
    assert password_of(copy.deepcopy(store)) == "geheim"
    assert password_of(store) == "geheim"
    # Another server's is not for this one.
    monkeypatch.setenv("REDIS_STATE_SYNC_URL", url.replace("127.0.0.1", "other"))
    assert password_of(pickle.loads(data)[0]) is None
    monkeypatch.delenv("REDIS_STATE_SYNC_URL")
    assert password_of(pickle.loads(data)[0]) is None


def password_of(store: Any) -> str | None:
    return with_password(store._make._endpoint).password


@pytest.mark.parametrize("way", WAYS[1:])
def test_what_is_alive_does_not_travel(way: Callable[[Any], Any]) -> None:
    """A learner, its handles and a store in memory refuse to be copied into another process."""
    store = MemoryStore()
    with publishing(store) as publisher:
        assert isinstance(publisher, StatePublisher)
        with pytest.raises(TypeError, match="make one where the learner runs"):
            way(publisher)
        with pytest.raises(TypeError):
            way(publisher.publish(state(1)))
    with pytest.raises(TypeError):
        way(store)
