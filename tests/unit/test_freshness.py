"""Limits of staleness: when they are exceeded, and what a reader then does."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_state_sync import ApplyError, StaleStateError, StateSubscriber, Version
from redis_state_sync.errors import StoreUnavailableError
from redis_state_sync.events import Stale
from redis_state_sync.freshness import Freshness, Limits
from redis_state_sync.reports import Reports
from redis_state_sync.testing import ScriptedStore
from tests.unit.states import WAIT, Clock, Reader, number_in, publishing, state

DOWN = StoreUnavailableError("gone")


@pytest.fixture
def store(redis_state_scripted_store: ScriptedStore) -> ScriptedStore:
    return redis_state_scripted_store


def freshness(clock: Clock, events: list[Any] | None = None, **limits: Any) -> Freshness:
    observers = () if events is None else (events.append,)
    return Freshness(Limits(**limits), Reports(observers), lambda: "the place", clock)


def version(number: int, generation: int = 7) -> Version:
    return Version(generation, number)


@pytest.mark.parametrize(
    ("held", "announced", "stale"),
    [
        (version(3), version(5), False),
        (version(3), version(6), True),
        (version(6), version(3), False),  # pushed by Ray, or applied in flight
        (version(3), version(300, generation=8), False),  # can not be counted
        (None, version(300), False),
        (version(3), None, False),
    ],
)
def test_versions(held: Any, announced: Any, stale: bool) -> None:
    """A version is too old if more than so many of its generation are known to be newer."""
    fresh = freshness(Clock(), max_staleness_versions=2)
    if stale:
        says = r"^3 versions behind \(max_staleness_versions is 2\): the place, held is 7-3 .* 7-6"
        with pytest.raises(StaleStateError, match=says):
            fresh.pause(held, announced, None)
    else:
        assert fresh.pause(held, announced, None) == 0


def test_seconds() -> None:
    """Time counts from the beginning, and from each version that was applied."""
    clock = Clock()
    fresh = freshness(clock, max_staleness_s=60.0)
    for _ in range(2):
        clock.now += 60
        assert fresh.pause(version(1), version(1), None) == 0
        clock.now += 1
        with pytest.raises(StaleStateError, match=r"^no new version for 61.0 s"):
            fresh.pause(version(1), version(1), None)
        fresh.applied()


def test_no_limits() -> None:
    """Without limits nothing is ever too old, whatever would be done about it."""
    for what in ("raise", "warn", "wait"):
        clock = Clock()
        fresh = freshness(clock, on_stale=what)
        clock.now += 1e9
        assert fresh.pause(version(1), version(10**6), None) == 0


def test_one_warning_for_each_time(caplog: pytest.LogCaptureFixture) -> None:
    """A reader that goes on warns when it becomes stale, and each stale refresh is counted."""
    events: list[Any] = []
    clock = Clock()
    fresh = freshness(clock, events, max_staleness_s=60.0, on_stale="warn")
    with caplog.at_level(logging.WARNING, "redis_state_sync"):
        for _ in range(2):
            clock.now += 61
            for _ in range(3):
                assert fresh.pause(version(1), None, None) == 0
            fresh.applied()
            assert fresh.pause(version(2), None, None) == 0
    assert len(caplog.records) == 2
    assert all(r.getMessage().startswith("going on all the same: ") for r in caplog.records)
    assert events == [Stale(version(1), 0.0)] * 6


@given(st.floats(0.001, 1e4))
def test_waiting(longest: float) -> None:
    """Pauses grow up to a tenth of a second, until the time is over; then it is an error."""
    events: list[Any] = []
    clock = Clock()
    fresh = freshness(
        clock, events, max_staleness_versions=0, on_stale="wait", stale_wait_s=longest
    )
    began = clock.now
    pauses = [fresh.pause(version(1), version(2), None)]
    while len(pauses) < 100:
        clock.now += pauses[-1]
        if clock.now - began > longest - 1e-9:
            break
        pauses.append(fresh.pause(version(1), version(2), began))
    assert all(0 < pause <= 0.1 for pause in pauses)
    assert pauses[:-1] == sorted(pauses[:-1])
    assert longest > 1 or sum(pauses) == pytest.approx(longest)
    assert len(pauses) < 100 or pauses[-1] == 0.1
    assert events == []
    clock.now = began + longest + 0.5
    with pytest.raises(StaleStateError, match=r"^waited .* s: 1 versions behind"):
        fresh.pause(version(1), version(2), began)
    assert events == [Stale(version(1), pytest.approx(longest + 0.5))]


def test_a_wait_that_ends_well_is_counted() -> None:
    """How long a reader waited is told when it goes on; one that did not wait tells nothing."""
    events: list[Any] = []
    clock = Clock()
    fresh = freshness(clock, events, max_staleness_versions=0, on_stale="wait")
    began = clock.now
    assert fresh.pause(version(1), version(2), None) > 0
    clock.now += 0.25
    assert fresh.pause(version(2), version(2), began) == 0
    assert fresh.pause(version(2), version(2), None) == 0
    assert events == [Stale(version(2), 0.25)]


# ---- over a store ----


def reject(snapshot: Any) -> None:
    raise ApplyError("no")


def test_rejected_versions_count(store: ScriptedStore) -> None:
    """A reader that can not apply what it fetches is behind by as many as it has heard of."""
    reader = Reader(store, max_staleness_versions=1)
    with publishing(store) as publisher:
        publisher.publish(state(1)).wait(WAIT)
        assert reader.refresh() is not None
        reader.clock.now += 10
        publisher.publish(state(2)).wait(WAIT)
        assert reader.subscriber.refresh(reject) is None
        publisher.publish(state(3)).wait(WAIT)
        for _ in range(2):  # The second time there is nothing new to ask about.
            with pytest.raises(StaleStateError, match=r"^2 versions behind"):
                reader.subscriber.refresh(reject)
        assert reader.subscriber.refresh(reject, limits=False) is None
        publisher.publish(state(4)).wait(WAIT)
        assert reader.refresh() is not None


def test_only_what_polls_have_shown_counts(store: ScriptedStore) -> None:
    """While the store does not answer, nobody knows of versions that a reader is behind."""
    reader = Reader(store, max_staleness_versions=0)
    with publishing(store) as publisher:
        publisher.publish(state(1)).wait(WAIT)
        reader.refresh()
        publisher.publish(state(2)).wait(WAIT)
        store.go_down(DOWN)
        assert reader.refresh() is None
        store.come_back()
        store.fail_next("get_blobs", DOWN)
        with pytest.raises(StaleStateError, match="1 versions behind"):
            reader.refresh()
        assert reader.refresh() is not None


def test_it_waits_until_something_is_applied(store: ScriptedStore) -> None:
    """A reader that waits applies what comes meanwhile, returns it, and counts the time."""
    events: list[Any] = []
    reader = StateSubscriber(
        store, "n", max_staleness_s=0.2, on_stale="wait", observers=[events.append]
    )
    with publishing(store) as publisher:
        publisher.publish(state(1)).wait(WAIT)
        assert reader.refresh(lambda _: None) is not None
        time.sleep(0.25)
        began = time.monotonic()
        later = threading.Timer(0.3, publisher.publish, [state(2)])
        later.start()
        snapshot = reader.refresh(lambda _: None)
        took = time.monotonic() - began
        later.join()
    assert snapshot is not None
    assert number_in(snapshot) == 2
    (stale,) = (event for event in events if isinstance(event, Stale))
    assert stale.held == snapshot.version
    assert 0.25 < stale.waited <= took


def test_others_may_use_a_reader_that_waits(store: ScriptedStore) -> None:
    """A wait holds no lock: what another thread applies ends it."""
    reader = StateSubscriber(store, "n", max_staleness_s=0.1, on_stale="wait")
    with publishing(store) as publisher:
        time.sleep(0.15)
        waits = threading.Thread(target=reader.refresh, args=[reject])
        waits.start()
        store.wait_for_calls("newest", 3)
        publisher.publish(state(1)).wait(WAIT)
        reader.adopt(publisher.last_version)
        waits.join(WAIT)
        assert not waits.is_alive()


def test_a_wait_leaves_a_failing_store_alone(store: ScriptedStore) -> None:
    """A reader that waits for a store that is gone asks as seldom as any other, then raises."""
    reader = StateSubscriber(store, "n", max_staleness_s=0.01, on_stale="wait", stale_wait_s=1.0)
    store.go_down(DOWN)
    time.sleep(0.02)
    began = time.monotonic()
    with pytest.raises(StaleStateError, match=r"^waited 1.\d s: no new version"):
        reader.refresh(lambda _: None)
    assert time.monotonic() - began >= 1.0
    assert 2 <= store.calls["newest"] <= 6


def test_in_flight_nothing_is_too_old(store: ScriptedStore) -> None:
    """Limits are for `refresh`: between two steps a reader neither raises nor waits."""
    for what in ("raise", "wait"):
        reader = Reader(store, max_staleness_s=1.0, max_staleness_versions=0, on_stale=what)
        reader.clock.now += 100
        assert reader.subscriber.refresh_in_flight(reader.applied.append) is None
        with reader.subscriber.prefetching():
            assert reader.subscriber.refresh_in_flight(reader.applied.append) is None
        assert reader.seen(Stale) == []


def test_what_is_applied_in_flight_is_fresh(store: ScriptedStore) -> None:
    """Weights applied between two steps count as a new version at the next refresh."""
    reader = Reader(store, max_staleness_s=60.0)
    with publishing(store) as publisher:
        reader.clock.now += 55
        publisher.publish(state(1)).wait(WAIT)
        assert reader.subscriber.refresh_in_flight(reader.applied.append) is not None
        reader.clock.now += 50
        reader.refresh()  # The rest of that version.
    assert reader.seen(Stale) == []


def test_a_copy_counts_afresh(store: ScriptedStore) -> None:
    """A reader in another process has the same limits, and a past of its own."""
    reader = Reader(store, max_staleness_s=60.0, clock=time.monotonic, observers=())
    reader.subscriber._freshness._fresh_since -= 100
    with pytest.raises(StaleStateError):
        reader.subscriber.refresh(reader.applied.append)
    copy = object.__new__(StateSubscriber)
    copy.__setstate__(reader.subscriber.__getstate__())
    assert copy.refresh(reader.applied.append) is None
    copy._freshness._fresh_since -= 100
    with pytest.raises(StaleStateError):
        copy.refresh(reader.applied.append)
