"""Refreshing between two steps: weights now, the rest later, nothing twice and never back."""

from __future__ import annotations

import logging
import signal
import threading
from typing import Any

import numpy as np
import pytest

from redis_state_sync import ApplyError, Snapshot, StaleStateError, StateSubscriber, Version
from redis_state_sync.errors import StoreTimeoutError, StoreUnavailableError
from redis_state_sync.events import Applied, Event, Failed, Fetched, Polled
from redis_state_sync.memory_store import MemoryStore
from redis_state_sync.testing import ScriptedStore
from tests.unit.flight import Acting
from tests.unit.states import WAIT, number_in, publishing, state

DOWN = StoreUnavailableError("connection refused")
LOST = StoreTimeoutError("no answer")


@pytest.fixture
def store(redis_state_scripted_store: ScriptedStore) -> ScriptedStore:
    return redis_state_scripted_store


def reject(snapshot: Snapshot) -> None:
    raise ApplyError("does not fit")


def test_weights_now_and_the_rest_later(store: ScriptedStore) -> None:
    """In flight a version counts as held; the next refresh applies its rest, once, unfetched."""
    reader = Acting(store, prefetching=False)
    with publishing(store) as publisher:
        publisher.publish(state(1)).wait(WAIT)
        reader.refresh()
        version = publisher.publish(state(2)).wait(WAIT)
        first = reader.refresh_in_flight()
        assert first is not None
        assert first.changed == {"rl_module/p", "counters"}
        assert reader.subscriber.held == version
        assert reader.refresh_in_flight() is None
        fetches = store.calls["get_blobs"]
        rest = reader.refresh()
        assert rest is not None
        assert (rest.version, rest.changed) == (version, {"counters"})
        assert number_in(rest) == 2
        assert store.calls["get_blobs"] == fetches
        assert reader.refresh() is None
        publisher.publish({**state(2), "extra/x": 1}).wait(WAIT)
        third = reader.refresh()
        assert third is not None
        assert third.changed == {"extra/x"}


def test_the_rest_is_applied_while_the_store_is_down(store: ScriptedStore) -> None:
    """The rest of what was applied in flight needs no store, in its first failure or after."""
    for refreshes in (1, 2):
        reader = Acting(store, prefetching=False)
        with publishing(store) as publisher:
            publisher.publish(state(refreshes)).wait(WAIT)
            assert reader.refresh_in_flight() is not None
            store.go_down(DOWN)
            rest = reader.refresh()
            assert rest is not None
            assert rest.changed == {"counters"}
            assert reader.refresh() is None
            store.come_back()


def test_a_newer_version_is_applied_whole(store: ScriptedStore) -> None:
    """What is newer than the one applied in flight takes its place; its rest is not applied."""
    reader = Acting(store, prefetching=False)
    with publishing(store) as publisher:
        publisher.publish(state(1)).wait(WAIT)
        reader.refresh()
        publisher.publish(state(2)).wait(WAIT)
        reader.refresh_in_flight()
        third = publisher.publish({**state(3), "rl_module/p": state(2)["rl_module/p"]}).wait(WAIT)
        snapshot = reader.refresh()
        assert snapshot is not None
        assert (snapshot.version, snapshot.changed) == (third, {"counters"})
        assert reader.refresh() is None
    assert [s.version.number for s in reader.applied] == [1, 3]


def test_several_in_flight(store: ScriptedStore) -> None:
    """Each is applied by its weights; the rest is that of the last one."""
    reader = Acting(store, prefetching=False)
    with publishing(store) as publisher:
        for number in (1, 2, 3):
            publisher.publish(state(number)).wait(WAIT)
            snapshot = reader.refresh_in_flight()
            assert snapshot is not None
            assert "rl_module/p" in snapshot.changed
            assert "counters" in snapshot.changed
        rest = reader.refresh()
    assert rest is not None
    assert rest.changed == {"counters"}
    assert number_in(rest) == 3
    assert len(reader.in_flight) == 3


@pytest.mark.parametrize("where", ["flight", "refresh"])
def test_a_rejected_version_leaves_the_rest_to_do(store: ScriptedStore, where: str) -> None:
    """Where a newer one does not fit, what is half applied is completed: it is still held."""
    reader = Acting(store, prefetching=False)
    subscriber = reader.subscriber
    with publishing(store) as publisher:
        second = publisher.publish(state(2)).wait(WAIT)
        reader.refresh_in_flight()
        publisher.publish(state(3)).wait(WAIT)
        if where == "flight":
            assert subscriber.refresh_in_flight(reject) is None
            assert subscriber.refresh_in_flight(reject) is None
        else:
            assert subscriber.refresh(reject) is None
        assert subscriber.held == second
        assert len(reader.seen(Failed)) == 1
        rest = reader.refresh()
        assert rest is not None
        assert (rest.version, rest.changed) == (second, {"counters"})
        assert reader.refresh() is None


def test_a_rest_that_does_not_fit_is_not_tried_again(store: ScriptedStore) -> None:
    """It counts as a failure, once; its weights stay, and the next version comes whole."""
    reader = Acting(store, prefetching=False)
    with publishing(store) as publisher:
        version = publisher.publish(state(2)).wait(WAIT)
        reader.refresh_in_flight()
        assert reader.subscriber.refresh(reject) is None
        assert reader.subscriber.held == version
        assert reader.refresh() is None
        publisher.publish({**state(2), "extra/x": 1}).wait(WAIT)
        snapshot = reader.refresh()
        assert snapshot is not None
        assert snapshot.changed == {"counters", "extra/x"}
    assert [e.operation for e in reader.seen(Failed)] == ["apply"]


def test_what_was_pushed_or_forgotten_is_not_completed(store: ScriptedStore) -> None:
    """After `adopt` nothing of an older version is applied; after `forget` all of the newest."""
    reader = Acting(store, prefetching=False)
    with publishing(store) as publisher:
        publisher.publish(state(1)).wait(WAIT)
        reader.refresh_in_flight()
        reader.subscriber.adopt(Version(publisher.generation, 5))
        assert reader.refresh() is None
        assert reader.subscriber.held == Version(publisher.generation, 5)
        for number in range(2, 8):
            publisher.publish(state(number)).wait(WAIT)
        reader.refresh_in_flight()
        reader.subscriber.forget()
        snapshot = reader.refresh()
        assert snapshot is not None
        assert snapshot.changed == set(snapshot)
        assert number_in(snapshot) == 7


def test_other_errors_of_apply_reach_the_caller(store: ScriptedStore) -> None:
    """An error that is no rejection is raised between steps; this version is not tried again."""
    reader = Acting(store, prefetching=False)

    def broken(snapshot: Snapshot) -> None:
        raise ZeroDivisionError

    with publishing(store) as publisher:
        publisher.publish(state(1)).wait(WAIT)
        with pytest.raises(ZeroDivisionError):
            reader.subscriber.refresh_in_flight(broken)
        assert reader.subscriber.held is None
        assert reader.refresh() is None
        publisher.publish(state(2)).wait(WAIT)
        assert reader.refresh_in_flight() is not None


def test_polls_in_flight_are_counted_together(store: ScriptedStore) -> None:
    """Polls in vain between steps are told of by the next refresh, as one event with a count."""
    reader = Acting(store, prefetching=False)
    with publishing(store) as publisher:
        publisher.publish(state(1)).wait(WAIT)
        reader.refresh()
        reader.events.clear()
        for _ in range(5):
            reader.refresh_in_flight()
        assert reader.events == []
        reader.refresh()
        assert [(type(e), e.count) for e in reader.events] == [(Polled, 5), (Polled, 1)]


def test_events_of_a_version_come_in_order(store: ScriptedStore) -> None:
    """Polled, fetched, applied: also of what was prefetched, and told between the steps."""
    reader = Acting(store)
    with publishing(store) as publisher:
        for number in (1, 2):
            reader.events.clear()
            publisher.publish(state(number)).wait(WAIT)
            assert reader.look_ahead()
            assert reader.events == []
            reader.refresh_in_flight()
            assert [type(event) for event in reader.events] == [Polled, Fetched, Applied]


def test_failures_in_flight_cool_down(
    store: ScriptedStore, caplog: pytest.LogCaptureFixture
) -> None:
    """A store that is gone is left alone by refreshes in flight, and warned of once."""
    reader = Acting(store, prefetching=False)
    subscriber = reader.subscriber
    with publishing(store) as publisher, caplog.at_level(logging.WARNING):
        publisher.publish(state(1)).wait(WAIT)
        reader.refresh()
        store.go_down(DOWN)
        store.calls.clear()
        for _ in range(100):
            assert subscriber.refresh_in_flight(reader.in_flight.append) is None
        assert store.calls["newest"] == 1
        for _ in range(3):
            reader.refresh_in_flight()
        store.come_back()
        publisher.publish(state(2)).wait(WAIT)
        assert reader.refresh_in_flight() is not None
        assert [e.operation for e in reader.seen(Failed)] == ["poll"] * 4
    assert caplog.text.count("poll failed") == 1


def test_max_staleness_in_flight() -> None:
    """What is applied in flight is new, nothing in flight raises, and the rest is not news."""
    store = MemoryStore()
    reader = Acting(store, prefetching=False, max_staleness_s=60.0)
    with publishing(store) as publisher:
        publisher.publish(state(1)).wait(WAIT)
        reader.refresh()
        for _ in range(4):
            assert reader.refresh_in_flight() is None
        publisher.publish(state(2)).wait(WAIT)
        assert reader.refresh_in_flight() is not None  # 50 s
        for _ in range(4):
            reader.refresh_in_flight()
        assert reader.refresh() is not None  # its rest, after 50 s
        for _ in range(5):
            reader.refresh_in_flight()  # 100 s
        with pytest.raises(StaleStateError):
            reader.refresh()
        publisher.publish(state(3)).wait(WAIT)
        assert reader.refresh_in_flight() is not None
        assert reader.subscriber.refresh(reader.applied.append) is not None


def test_refreshes_within_a_refresh_do_nothing(store: ScriptedStore) -> None:
    """Whatever `apply` or a signal handler calls meanwhile, one version is applied at a time."""
    reader = Acting(store, prefetching=False)
    subscriber, inner = reader.subscriber, []

    def again(*_: Any) -> None:
        inner.append(subscriber.refresh(lambda s: pytest.fail("applied within")))
        inner.append(subscriber.refresh_in_flight(lambda s: pytest.fail("applied within")))

    def apply(snapshot: Snapshot) -> None:
        publisher.publish(state(9)).wait(WAIT)
        again()
        signal.raise_signal(signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, again)
    try:
        with publishing(store) as publisher:
            for number, refresh in ((1, subscriber.refresh), (2, subscriber.refresh_in_flight)):
                publisher.publish(state(number)).wait(WAIT)
                assert refresh(apply) is not None
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert inner == [None] * 8


def test_in_flight_waits_for_no_other_thread(store: ScriptedStore) -> None:
    """Who acts goes on acting while another thread applies a version or waits for the store."""
    reader = Acting(store, prefetching=False)
    subscriber = reader.subscriber
    with publishing(store) as publisher:
        publisher.publish(state(1)).wait(WAIT)
        with store.paused("get_blobs"):
            other = threading.Thread(target=reader.refresh)
            other.start()
            store.wait_for_calls("get_blobs", 1)
            assert subscriber.refresh_in_flight(reader.in_flight.append) is None
            assert other.is_alive()
        other.join(WAIT)
    assert len(reader.applied) == 1
    assert reader.in_flight == []


def test_weights_only_are_decoded_ahead() -> None:
    """A prefetched version's changed weights are decoded on the thread, once; arrays are own."""
    store = MemoryStore()
    reader = Acting(store)
    with publishing(store) as publisher:
        publisher.publish({"rl_module/a": np.zeros(4), "rl_module/b": 1, "counters": 2}).wait(WAIT)
        reader.refresh()
        publisher.publish({"rl_module/a": np.ones(4), "rl_module/b": 1, "counters": 3}).wait(WAIT)
        reader.look_ahead()
        ahead = reader.subscriber._arrivals.ahead
        assert ahead is not None
        assert set(ahead._ready) == {"rl_module/a"}
        snapshot = reader.refresh_in_flight()
    assert snapshot is ahead
    first, second = snapshot["rl_module/a"], snapshot["rl_module/a"]
    first += 5
    assert (second == 1).all()
    assert first.flags.writeable


def test_observers_hear_on_the_thread_that_refreshes() -> None:
    """With a real thread fetching, every event is told where `refresh...` is called."""
    store = MemoryStore()
    threads: set[threading.Thread] = set()
    kinds: set[type[Event]] = set()

    def observe(event: Event) -> None:
        threads.add(threading.current_thread())
        kinds.add(type(event))

    subscriber = StateSubscriber(store, "n", observers=[observe], prefetch_every_s=0.0005)
    applied = 0
    with publishing(store) as publisher:
        for number in range(1, 30):
            publisher.publish(state(number)).wait(WAIT)
            subscriber.refresh(lambda s: None)
            with subscriber.prefetching():
                publisher.publish(state(-number)).wait(WAIT)
                for _ in range(50):
                    found = subscriber.refresh_in_flight(lambda s: None)
                    applied += found is not None
                    if found is not None:
                        break
                    threading.Event().wait(0.002)
    subscriber.close()
    assert applied > 5
    assert threads == {threading.current_thread()}
    assert kinds == {Polled, Fetched, Applied}


class MarkedStore(MemoryStore):
    """One that says, as a tracked server does, that nothing changed."""

    def mark(self) -> object:
        return str(self._values.get("rss:{n}:versions"))

    def newest(self, *args: Any, tracked: bool = False, **kwargs: Any) -> Any:
        return super().newest(*args, **kwargs)


def test_parts_that_stay_the_same_are_known_to_be_there(store: ScriptedStore) -> None:
    """What was applied whole before counts: the rest is what differs from it, or nothing."""
    reader = Acting(store, prefetching=False)
    with publishing(store) as publisher:
        publisher.publish({**state(1), "extra/x": 1}).wait(WAIT)
        reader.refresh()
        publisher.publish({**state(1), "rl_module/p": 2, "extra/x": 1}).wait(WAIT)
        first = reader.refresh_in_flight()
        assert first is not None
        assert first.changed == {"rl_module/p"}
        publisher.publish({**state(1), "rl_module/p": 2, "extra/x": 3}).wait(WAIT)
        second = reader.refresh_in_flight()
        assert second is not None
        assert second.changed == {"extra/x"}
        rest = reader.refresh()
        assert rest is not None
        assert rest.changed == {"extra/x"}
        publisher.publish({**state(1), "rl_module/p": 4, "extra/x": 3}).wait(WAIT)
        reader.refresh_in_flight()
        rest = reader.refresh()
        assert rest is not None
        assert rest.changed == frozenset()


@pytest.mark.parametrize("prefetching", [False, True])
def test_the_rest_is_applied_without_asking(prefetching: bool) -> None:
    """Where the server says that nothing changed, the rest is applied all the same, once."""
    store = MarkedStore()
    reader = Acting(store, prefetching=prefetching, tracking=True)
    subscriber = reader.subscriber
    with publishing(store) as publisher:
        publisher.publish(state(1)).wait(WAIT)
        subscriber._look_ahead()
        assert subscriber.refresh_in_flight(reader.in_flight.append) is not None
        subscriber._look_ahead()
        assert subscriber._arrivals.unchanged()
        assert subscriber.refresh(reader.applied.append) is not None
        assert subscriber.refresh(reader.applied.append) is None
        assert reader.applied[0].changed == {"counters"}


def test_what_is_ahead_is_applied_without_asking() -> None:
    """A server that says that nothing changed since it lost a version does not hide it."""
    store = MarkedStore()
    reader = Acting(store, tracking=True)
    subscriber = reader.subscriber
    with publishing(store) as publisher:
        publisher.publish(state(1)).wait(WAIT)
        subscriber.refresh(reader.applied.append)
        second = publisher.publish(state(2)).wait(WAIT)
        assert subscriber._look_ahead()
        store.drop(subscriber.keys, [second], [], timeout=WAIT)
        subscriber._arrivals._no_fetch_before = 0.0
        assert not subscriber._look_ahead()
        assert subscriber._arrivals.poller.unchanged()
        assert reader.ahead == second
        snapshot = subscriber.refresh(reader.applied.append)
        assert snapshot is not None
        assert snapshot.version == second
