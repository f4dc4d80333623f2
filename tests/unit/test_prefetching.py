"""What is fetched ahead: used once, fetched once, and never used instead of a newer one."""

from __future__ import annotations

import gc
import logging
import os
import pickle
import subprocess
import sys
import threading
import time
import weakref

import pytest

from redis_state_sync import ApplyError, Snapshot, StateSubscriber, Version, open_store
from redis_state_sync.errors import StoreTimeoutError, StoreUnavailableError
from redis_state_sync.events import Applied, Failed, Fetched, Polled
from redis_state_sync.keys import Keys
from redis_state_sync.memory_store import MemoryStore
from redis_state_sync.store import Store
from redis_state_sync.testing import EmbeddedServer, ScriptedStore
from tests.unit.flight import Acting, wait_until
from tests.unit.forking import in_child
from tests.unit.states import WAIT, number_in, publishing, state

DOWN = StoreUnavailableError("connection refused")
LOST = StoreTimeoutError("no answer")


@pytest.fixture
def store(redis_state_scripted_store: ScriptedStore) -> ScriptedStore:
    return redis_state_scripted_store


def reject(snapshot: Snapshot) -> None:
    raise ApplyError("does not fit")


@pytest.mark.parametrize("where", ["flight", "refresh"])
def test_what_was_prefetched_is_not_fetched_again(store: ScriptedStore, where: str) -> None:
    """Its one fetch is that of the thread, wherever it is applied; in flight there is no poll."""
    reader = Acting(store)
    with publishing(store) as publisher:
        publisher.publish(state(1)).wait(WAIT)
        reader.refresh()
        version = publisher.publish(state(2)).wait(WAIT)
        store.calls.clear()
        assert reader.refresh_in_flight() is None
        assert store.calls == {}
        assert reader.look_ahead()
        assert reader.subscriber.held != version
        assert not reader.look_ahead()
        asked = store.calls["newest"]
        snapshot = reader.refresh_in_flight() if where == "flight" else reader.refresh()
        assert snapshot is not None
        assert number_in(snapshot) == 2
        assert (store.calls["newest"] > asked) == (where == "refresh")
        assert store.calls["get_blobs"] == store.calls["note_reader"] == 1
        assert reader.ahead is None
        assert not reader.look_ahead()
        assert reader.refresh_in_flight() is None
        assert reader.subscriber.held == version
    assert len(reader.seen(Applied)) == 2


def test_the_newest_wins(store: ScriptedStore) -> None:
    """A refresh takes the newest version there is; what was prefetched before is not applied."""
    reader = Acting(store)
    with publishing(store) as publisher:
        publisher.publish(state(1)).wait(WAIT)
        reader.look_ahead()
        newest = publisher.publish(state(2)).wait(WAIT)
        snapshot = reader.refresh()
        assert snapshot is not None
        assert (snapshot.version, number_in(snapshot)) == (newest, 2)
        assert reader.ahead is None
        assert reader.refresh_in_flight() is None
    assert [s.version for s in reader.applied + reader.in_flight] == [newest]


def test_the_newest_prefetched_wins(store: ScriptedStore) -> None:
    """The thread, too, replaces what it fetched by what is newer: after a pause if unused."""
    reader = Acting(store)
    with publishing(store) as publisher:
        for number in (1, 2):
            publisher.publish(state(number)).wait(WAIT)
            assert reader.look_ahead()
        assert reader.ahead == publisher.last_version
        snapshot = reader.refresh_in_flight()
        assert snapshot is not None
        assert number_in(snapshot) == 2


def test_fetches_that_nobody_uses_become_rare(store: ScriptedStore) -> None:
    """Who acts for long has a tenth of a thread spent on it; who uses one gets the next at once."""
    reader = Acting(store)
    arrivals, fetch_s = reader.subscriber._arrivals, 2.0
    inner = arrivals._fetcher.fetch

    def slow(*args: object, **kwargs: object) -> object:
        reader.clock.now += fetch_s
        return inner(*args, **kwargs)  # type: ignore[arg-type]

    arrivals._fetcher.fetch = slow  # type: ignore[method-assign, assignment]
    with publishing(store) as publisher:
        fetches = 0
        for number in range(100):
            publisher.publish(state(number)).wait(WAIT)
            fetches += reader.look_ahead(later=1.0)
        assert 4 <= fetches <= 6
        for number in range(5):
            assert reader.refresh_in_flight() is not None
            publisher.publish(state(number)).wait(WAIT)
            assert reader.look_ahead(later=0.0)


@pytest.mark.parametrize("operation", ["newest", "get_blobs"])
@pytest.mark.parametrize("where", ["refresh", "thread"])
def test_what_was_prefetched_serves_an_outage(
    store: ScriptedStore, operation: str, where: str
) -> None:
    """If the newest version can not be had, what was fetched before it is applied; once."""
    reader = Acting(store)
    with publishing(store) as publisher:
        first = publisher.publish(state(1)).wait(WAIT)
        reader.look_ahead()
        second = publisher.publish(state(2)).wait(WAIT)
        store.fail_next(operation, LOST)
        if where == "thread":
            assert not reader.look_ahead()
            assert reader.ahead == first
            snapshot = reader.subscriber.refresh(reader.applied.append)  # It cools down.
        else:
            snapshot = reader.refresh()
        assert snapshot is not None
        assert (snapshot.version, number_in(snapshot)) == (first, 1)
        assert reader.subscriber.held == first
        snapshot = reader.refresh()
        assert snapshot is not None
        assert (snapshot.version, number_in(snapshot)) == (second, 2)
    operations = [e.operation for e in reader.seen(Failed)]
    assert operations == ["poll" if operation == "newest" else "fetch"]


def test_a_blob_that_is_gone_leaves_what_was_prefetched(store: ScriptedStore) -> None:
    """The same for a version that is damaged, or of which a part is missing for good."""
    for fault in (store.lose_blob, store.corrupt):
        namespace = fault.__name__
        reader = Acting(store, namespace=namespace)
        with publishing(store, namespace) as publisher:
            first = publisher.publish(state(1)).wait(WAIT)
            reader.look_ahead()
            publisher.publish({**state(2), "extra/x": namespace}).wait(WAIT)
            choice = reader.subscriber._arrivals.ask(WAIT)
            assert choice is not None
            fault(choice[1].components["extra/x"].pieces[0].digest)
            snapshot = reader.refresh()
            assert snapshot is not None
            assert snapshot.version == first
            assert reader.refresh() is None
            assert reader.subscriber.held == first


@pytest.mark.parametrize("where", ["flight", "refresh"])
def test_a_rejected_version_is_not_tried_again(store: ScriptedStore, where: str) -> None:
    """Prefetched or not: it is neither applied nor fetched again; the next one is."""
    reader = Acting(store)
    subscriber = reader.subscriber
    with publishing(store) as publisher:
        publisher.publish(state(1)).wait(WAIT)
        reader.look_ahead()
        refused = subscriber.refresh_in_flight if where == "flight" else subscriber.refresh
        assert refused(reject) is None
        store.calls.clear()
        for _ in range(3):
            assert not reader.look_ahead()
            assert reader.refresh_in_flight() is None
            assert reader.refresh() is None
        assert "get_blobs" not in store.calls
        assert len(reader.seen(Failed)) == 1
        version = publisher.publish(state(2)).wait(WAIT)
        assert reader.look_ahead()
        assert reader.refresh_in_flight() is not None
        assert subscriber.held == version


def test_versions_lost_by_the_store(store: ScriptedStore) -> None:
    """What was prefetched is newer than what is held, and stays so if the store loses it."""
    reader = Acting(store)
    keys = Keys("n")
    with publishing(store) as publisher:
        first = publisher.publish(state(1)).wait(WAIT)
        reader.refresh()
        second = publisher.publish(state(2)).wait(WAIT)
        reader.look_ahead()
        store.drop(keys, [second], [], timeout=WAIT)
        assert not reader.look_ahead()
        assert reader.subscriber.held == first
        snapshot = reader.refresh()
        assert snapshot is not None
        assert snapshot.version == second
        store.drop(keys, [first], [], timeout=WAIT)
        assert not reader.look_ahead()
        assert reader.refresh() is None
        assert reader.subscriber.held == second


def test_claims_and_foreign_writers(store: ScriptedStore) -> None:
    """What others write above a prefetched version does not make it unfit, however much it is."""
    reader = Acting(store, writer="mine")
    with publishing(store, writer_id="mine") as publisher:
        version = publisher.publish(state(1)).wait(WAIT)
        reader.look_ahead()
    with publishing(store, writer_id="theirs", history=50) as other:
        for number in range(20):
            other.publish(state(number)).wait(WAIT)
        for _ in range(2):
            assert not reader.look_ahead()
            assert reader.ahead == version
        assert reader.refresh_in_flight() is not None
        assert reader.refresh() is not None  # its rest
        assert not reader.look_ahead()
        assert reader.refresh() is None
    with publishing(store, writer_id="mine") as again:
        newest = again.publish(state(3)).wait(WAIT)
        assert reader.look_ahead()
        assert reader.ahead == newest
        assert reader.refresh() is not None


def test_a_new_generation(store: ScriptedStore) -> None:
    """A learner that took over is newer than what was prefetched of the one before."""
    reader = Acting(store)
    with publishing(store) as old:
        for number in range(3):
            old.publish(state(number)).wait(WAIT)
        reader.look_ahead()
    with publishing(store) as new:
        assert not reader.look_ahead()  # A claim alone is no state.
        assert reader.ahead == old.last_version
        version = new.publish(state(9)).wait(WAIT)
        assert version > old.last_version
        snapshot = reader.refresh()
    assert snapshot is not None
    assert (snapshot.version, number_in(snapshot)) == (version, 9)


def test_forget_while_something_is_ahead(store: ScriptedStore) -> None:
    """What is ahead is applied whole then, as nothing of it is known to be there."""
    reader = Acting(store)
    with publishing(store) as publisher:
        publisher.publish(state(1)).wait(WAIT)
        reader.refresh()
        publisher.publish({**state(1), "extra/x": 1}).wait(WAIT)
        reader.look_ahead()
        reader.subscriber.forget()
        assert reader.subscriber.held is None
        snapshot = reader.refresh_in_flight()
        assert snapshot is not None
        assert snapshot.changed == set(snapshot)
        rest = reader.refresh()
        assert rest is not None
        assert rest.changed == {"counters", "extra/x"}


def test_adopt_while_something_is_ahead(store: ScriptedStore) -> None:
    """What is not newer than what was pushed is dropped; what is newer is still applied."""
    reader = Acting(store)
    with publishing(store) as publisher:
        version = publisher.publish(state(1)).wait(WAIT)
        older = Version(version.generation - 1, 7)
        reader.look_ahead()
        reader.subscriber.adopt(older)
        assert reader.ahead == version
        reader.subscriber.adopt(version)
        assert reader.ahead is None
        assert reader.refresh_in_flight() is None
        assert reader.refresh() is None
        second = publisher.publish(state(2)).wait(WAIT)
        reader.look_ahead()
        reader.subscriber.adopt(Version(second.generation, second.number + 1))
        assert reader.ahead is None
        reader.subscriber.adopt(second)
        assert reader.subscriber.held == Version(second.generation, second.number + 1)
        assert reader.refresh_in_flight() is None


def test_failures_on_the_thread(store: ScriptedStore, caplog: pytest.LogCaptureFixture) -> None:
    """They are counted once each, warned of once, cool down, and end: as those of a refresh."""
    reader = Acting(store)
    with publishing(store) as publisher, caplog.at_level(logging.WARNING):
        publisher.publish(state(1)).wait(WAIT)
        reader.refresh()
        publisher.publish(state(2)).wait(WAIT)
        reader.events.clear()
        store.go_down(DOWN)
        store.calls.clear()
        for _ in range(50):
            reader.look_ahead(later=0.0)
        assert store.calls["newest"] == 1
        for _ in range(3):
            reader.look_ahead()
        assert store.calls["newest"] == 4
        assert reader.subscriber.refresh(reader.applied.append) is None
        assert store.calls["newest"] == 4  # The cool-down is common to both.
        assert [e.operation for e in reader.seen(Failed)] == ["poll"] * 4
        store.come_back()
        assert reader.look_ahead()
        assert reader.refresh_in_flight() is not None
    assert caplog.text.count("poll failed") == 1
    assert len(reader.seen(Failed)) == 4


def test_polls_of_the_thread_are_counted(store: ScriptedStore) -> None:
    """Each that found nothing, together; the one that found something by itself."""
    reader = Acting(store)
    with publishing(store) as publisher:
        publisher.publish(state(1)).wait(WAIT)
        reader.refresh()
        reader.events.clear()
        for _ in range(7):
            reader.look_ahead()
        publisher.publish(state(2)).wait(WAIT)
        reader.look_ahead()
        assert reader.events == []
        reader.refresh()
    polls = [(e.newest is not None, e.count) for e in reader.seen(Polled)]
    assert polls == [(False, 7), (True, 1), (True, 1)]


def test_an_unexpected_error_is_raised_where_it_is_seen(store: ScriptedStore) -> None:
    """A defect met on the thread ends the looking, and is raised by the next refresh; once."""
    reader = Acting(store)
    with publishing(store) as publisher:
        publisher.publish(state(1)).wait(WAIT)
        store.fail_next("newest", ZeroDivisionError("a store of one's own"))
        assert not reader.look_ahead()
        assert not reader.subscriber._prefetcher.is_on
        with pytest.raises(ZeroDivisionError, match="one's own"):
            reader.refresh()
        assert reader.refresh() is not None
        store.fail_next("get_blobs", ZeroDivisionError("another"))
        publisher.publish(state(2)).wait(WAIT)
        assert not reader.look_ahead()
        assert reader.subscriber.refresh_in_flight(reader.in_flight.append) is not None
        with pytest.raises(ZeroDivisionError, match="another"):
            reader.refresh()


# ------------------------------------------------------------------ with its thread


def looking(store: Store, **kwargs: object) -> Acting:
    return Acting(store, prefetching=False, prefetch_every_s=0.0005, clock=time.monotonic, **kwargs)


def test_the_thread_fetches_within_the_block_only(store: ScriptedStore) -> None:
    """Within the block a new version arrives by itself; outside nothing is asked."""
    reader = looking(store)
    subscriber = reader.subscriber
    with publishing(store) as publisher:
        for number in (1, 2, 3):
            with subscriber.prefetching():
                version = publisher.publish(state(number)).wait(WAIT)
                wait_until(lambda version=version: reader.ahead == version)
                assert subscriber.refresh_in_flight(reader.in_flight.append) is not None
                assert subscriber.held == version
            wait_until(lambda: subscriber._lock.acquire(blocking=False))  # A look has ended.
            subscriber._lock.release()
            time.sleep(0.005)
            asked = store.calls["newest"]
            time.sleep(0.05)
            assert store.calls["newest"] == asked
        subscriber.close()
    assert [number_in(s) for s in reader.in_flight] == [1, 2, 3]


def test_one_fetch_is_under_way_at_most(store: ScriptedStore) -> None:
    """A refresh waits for the thread's fetch and uses it; one in flight does not wait."""
    reader = looking(store)
    subscriber = reader.subscriber
    with publishing(store) as publisher, subscriber.prefetching():
        with store.paused("get_blobs"):
            version = publisher.publish(state(1)).wait(WAIT)
            store.wait_for_calls("get_blobs", 1)
            for _ in range(10):
                assert subscriber.refresh_in_flight(reader.in_flight.append) is None
            other = threading.Thread(target=subscriber.refresh, args=(reader.applied.append,))
            other.start()
            other.join(0.05)
            assert other.is_alive()
        other.join(WAIT)
        assert store.calls["get_blobs"] == 1
        assert [s.version for s in reader.applied] == [version]
    subscriber.close()


def test_close_does_not_wait_for_a_fetch_that_hangs(store: ScriptedStore) -> None:
    """It returns in a moment, the thread ends with its fetch, and the subscriber is usable."""
    reader = looking(store)
    subscriber = reader.subscriber
    with publishing(store) as publisher:
        publisher.publish(state(1)).wait(WAIT)
        with store.paused("get_blobs"), subscriber.prefetching():
            store.wait_for_calls("get_blobs", 1)
            thread = subscriber._prefetcher._thread
            assert thread is not None
            closing = threading.Thread(target=subscriber.close)
            closing.start()
            closing.join(WAIT / 2)
            assert not closing.is_alive()
            assert thread.is_alive()
        thread.join(WAIT)
        assert not thread.is_alive()
        assert subscriber.refresh(reader.applied.append) is not None
        subscriber.close()


def test_a_dropped_subscriber_ends_its_thread(store: ScriptedStore) -> None:
    """Also one that is dropped within the block, or while its thread fetches."""
    for hanging in (False, True):
        with publishing(store) as publisher:
            publisher.publish(state(1)).wait(WAIT)
            subscriber = StateSubscriber(store, "n", prefetch_every_s=0.0005)
            block = subscriber.prefetching()
            with store.paused("get_blobs" if hanging else "pins"):
                calls = store.calls["get_blobs"]
                block.__enter__()
                store.wait_for_calls("get_blobs", calls + 1)
                thread = subscriber._prefetcher._thread
                assert thread is not None
                there = weakref.ref(subscriber)
                del subscriber, block
                gc.collect()
            thread.join(WAIT)
            assert not thread.is_alive()
            gc.collect()
            assert there() is None


def test_a_block_within_another(store: ScriptedStore) -> None:
    """Prefetching goes on until the outer one of two blocks ends."""
    subscriber = looking(store).subscriber
    with subscriber.prefetching():
        with subscriber.prefetching():
            pass
        assert subscriber._prefetcher.is_on
    assert not subscriber._prefetcher.is_on
    subscriber.close()


def test_no_thread_to_be_had(
    store: ScriptedStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a thread a refresh in flight asks itself, and a warning says so, once."""
    reader = looking(store)
    subscriber = reader.subscriber

    def refuse() -> None:
        raise RuntimeError("can't start new thread")

    with publishing(store) as publisher:
        publisher.publish(state(1)).wait(WAIT)
        monkeypatch.setattr("redis_state_sync.background.start", lambda *a, **k: refuse())
        for _ in range(2):
            with subscriber.prefetching():
                subscriber.refresh_in_flight(reader.in_flight.append)
    assert len(reader.in_flight) == 1
    assert caplog.text.count("can't start new thread") == 1


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_while_the_thread_fetches(redis_state_server: EmbeddedServer) -> None:
    """A child is not locked out by its parent's fetch, has nothing ahead, and does not go back;
    it can prefetch with a thread of its own: C90.
    """
    store = ScriptedStore(open_store(redis_state_server.url))
    reader = looking(store, poll_timeout_s=WAIT)
    subscriber = reader.subscriber
    with publishing(open_store(redis_state_server.url)) as publisher:
        publisher.publish(state(1)).wait(WAIT)
        subscriber.refresh(reader.applied.append)
        first = subscriber.held

        def child() -> None:
            store._paused.clear()
            store._changed = threading.Condition()
            assert subscriber.refresh_in_flight(lambda s: None) is not None
            assert subscriber.held == second
            with subscriber.prefetching():
                wait_until(lambda: subscriber._prefetcher._thread is not None)
            subscriber.forget()
            snapshot = subscriber.refresh(lambda s: None)
            assert snapshot is not None
            assert snapshot.changed == set(snapshot)
            subscriber.close()

        with subscriber.prefetching():
            with store.paused("get_blobs"):
                calls = store.calls["get_blobs"]
                second = publisher.publish(state(2)).wait(WAIT)
                store.wait_for_calls("get_blobs", calls + 1)
                assert in_child(child) == 0
                assert subscriber.held == first
            wait_until(lambda: reader.ahead == second)
            assert subscriber.refresh_in_flight(reader.in_flight.append) is not None
        subscriber.close()


def test_travels_without_what_is_ahead() -> None:
    """A pickled subscriber takes its settings along: neither a thread nor what was fetched: C91."""
    store = open_store("redis://127.0.0.1:1")
    subscriber = StateSubscriber(store, "n", prefetch_every_s=0.25, max_staleness_s=5.0)
    with subscriber.prefetching():
        other = pickle.loads(pickle.dumps(subscriber))
        assert not other._prefetcher.is_on
        assert other._prefetcher._thread is None
        assert other._prefetcher._pace.pause == 0.25
        assert other._arrivals.ahead is None
        assert other._half_applied is None
    subscriber.close()


def test_a_process_ends_while_its_thread_fetches() -> None:
    """The interpreter does not wait for it."""
    program = """
import threading, time
from redis_state_sync import StatePublisher, StateSubscriber, open_store
from redis_state_sync.memory_store import MemoryStore
from redis_state_sync.testing import ScriptedStore
store = ScriptedStore(MemoryStore())
publisher = StatePublisher(store, "n")
publisher.publish({"rl_module/p": 1}).wait(20)
publisher.close()
subscriber = StateSubscriber(store, "n", prefetch_every_s=0.001)
pause = store.paused("get_blobs")
pause.__enter__()
block = subscriber.prefetching()
block.__enter__()
store.wait_for_calls("get_blobs", 1)
print("ends")
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=WAIT * 2,
        env=os.environ,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "ends\n", "")


def test_events_carry_what_was_skipped(store: ScriptedStore) -> None:
    """`skipped` counts from what was fetched or applied last, whether it was used or not."""
    reader = Acting(store)
    with publishing(store) as publisher:
        publisher.publish(state(1)).wait(WAIT)
        reader.look_ahead()
        for number in (2, 3, 4):
            publisher.publish(state(number)).wait(WAIT)
        reader.look_ahead()
        reader.refresh_in_flight()
    assert [e.skipped for e in reader.seen(Fetched)] == [0, 2]


def test_a_version_is_not_kept_after_its_use() -> None:
    """What was superseded or applied whole is not held on to."""
    store = MemoryStore()
    reader = Acting(store)
    kept: list[weakref.ref[Snapshot]] = []
    with publishing(store) as publisher:
        for number in (1, 2):
            publisher.publish(state(number)).wait(WAIT)
            reader.look_ahead()
            kept.append(weakref.ref(reader.subscriber._arrivals.ahead))  # type: ignore[arg-type]
        gc.collect()
        assert kept[0]() is None
        assert reader.refresh_in_flight() is not None
        reader.in_flight.clear()
        gc.collect()
        assert kept[1]() is not None
        assert reader.refresh() is not None
        reader.applied.clear()
        gc.collect()
        assert kept[1]() is None
