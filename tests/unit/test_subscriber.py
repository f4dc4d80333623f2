"""The reading side, over a store in memory."""

from __future__ import annotations

import logging
import os
import pickle
import threading

import numpy as np
import pytest

from redis_state_sync import (
    ApplyError,
    Snapshot,
    StaleStateError,
    StateSubscriber,
    Version,
    open_store,
)
from redis_state_sync.errors import StoreUnavailableError
from redis_state_sync.events import Applied, Failed, Fetched, Polled
from redis_state_sync.memory_store import MemoryStore
from redis_state_sync.testing import EmbeddedServer, ScriptedStore
from tests.unit.forking import in_child
from tests.unit.states import WAIT, Clock, Reader, number_in, publishing, state


@pytest.fixture
def store(redis_state_scripted_store: ScriptedStore) -> ScriptedStore:
    return redis_state_scripted_store


def test_three_publishes_cost_one_fetch(store: ScriptedStore) -> None:
    """Whatever was published meanwhile, the next refresh takes the newest with one fetch: C1."""
    reader = Reader(store)
    with publishing(store) as publisher:
        publisher.publish(state(1)).wait(WAIT)
        reader.refresh()
        store.calls.clear()
        for number in (2, 3, 4):
            publisher.publish(state(number)).wait(WAIT)
        snapshot = reader.refresh()
    assert snapshot is not None
    assert number_in(snapshot) == 4
    assert reader.subscriber.held == publisher.last_version == snapshot.version
    assert store.calls["get_blobs"] == 1
    assert reader.seen(Fetched)[-1].skipped == 2


def test_nothing_published_nothing_fetched(store: ScriptedStore) -> None:
    """Polls without a new version fetch, apply and note nothing: one round trip each: C1."""
    reader = Reader(store)
    with publishing(store) as publisher:
        publisher.publish(state(1)).wait(WAIT)
        assert reader.refresh() is not None
        store.calls.clear()
        assert [reader.refresh() for _ in range(5)] == [None] * 5
    assert store.calls == {"newest": 5}
    assert len(reader.seen(Polled)) == 6


def test_an_empty_namespace_is_no_version(store: ScriptedStore) -> None:
    """'Nothing published yet' is None and no error, with and without a claim: C17."""
    reader = Reader(store)
    assert reader.refresh() is None
    assert reader.subscriber.poll() is None
    assert reader.subscriber.fetch() is None
    assert reader.subscriber.polled_in_vain
    with publishing(store):
        assert reader.refresh() is None
        assert reader.subscriber.poll() is None
    assert reader.subscriber.held is None
    assert reader.seen(Failed) == []


def test_absent_components_stay_as_they_are(store: ScriptedStore) -> None:
    """A component that only some versions name is carried forward, and others are absent: C6."""
    reader = Reader(store)
    with publishing(store) as publisher:
        publisher.publish({"rl_module/p": 1, "env_to_module_connector": {"a": 1}}).wait(WAIT)
        first = reader.refresh()
        publisher.publish({"rl_module/p": 2}).wait(WAIT)
        second = reader.refresh()
    assert first is not None
    assert second is not None
    assert dict(second) == {"rl_module/p": 2, "env_to_module_connector": {"a": 1}}
    assert second.changed == {"rl_module/p"}
    assert first.changed == {"rl_module/p", "env_to_module_connector"}
    assert "module_to_env_connector" not in second
    with pytest.raises(KeyError):
        second["module_to_env_connector"]


def test_unchanged_components_are_not_fetched_again(store: ScriptedStore) -> None:
    """A frozen module crosses the wire once: C42."""
    reader = Reader(store)
    frozen = {"w": np.zeros(10_000)}
    with publishing(store) as publisher:
        for number in (1, 2, 3):
            publisher.publish({"rl_module/frozen": frozen, "rl_module/p": number}).wait(WAIT)
            snapshot = reader.refresh()
            assert snapshot is not None
            assert snapshot["rl_module/frozen"]["w"].shape == (10_000,)
    first, second, third = (event.bytes_fetched for event in reader.seen(Fetched))
    assert first > 80_000
    assert second < 1000
    assert third < 1000


def test_a_smaller_version_never_comes_back(store: ScriptedStore) -> None:
    """A store that lost its newest versions makes no reader go back: C10, C19."""
    reader = Reader(store)
    with publishing(store) as publisher:
        for number in (1, 2):
            publisher.publish(state(number)).wait(WAIT)
        reader.refresh()
        held = reader.subscriber.held
        assert publisher.last_version is not None
        store.drop(publisher.keys, [publisher.last_version], [], timeout=1)
        assert reader.refresh() is None
        assert reader.subscriber.held == held
        publisher.publish(state(3)).wait(WAIT)
        snapshot = reader.refresh()
    assert snapshot is not None
    assert number_in(snapshot) == 3


def test_a_new_generation_is_applied(store: ScriptedStore) -> None:
    """A restarted learner's first version is newer, though its numbers begin anew: C10, C11."""
    reader = Reader(store)
    with publishing(store) as old:
        for number in (1, 2, 3):
            old.publish(state(number), weights_seq_no=number).wait(WAIT)
        reader.refresh()
    with publishing(store) as new:
        new.publish(state(10), weights_seq_no=1).wait(WAIT)
        snapshot = reader.refresh()
    assert snapshot is not None
    assert (number_in(snapshot), snapshot.weights_seq_no) == (10, 1)
    assert snapshot.version.generation > old.generation
    assert reader.seen(Fetched)[-1].skipped == 0


def test_a_rejected_version_is_not_fetched_again(store: ScriptedStore) -> None:
    """A state that does not fit changes nothing, is not retried; a later one is taken: C14."""
    reader = Reader(store)
    with publishing(store) as publisher:
        publisher.publish(state(1)).wait(WAIT)
        reader.refresh()
        held = reader.subscriber.held
        publisher.publish(state(2)).wait(WAIT)

        def reject(snapshot: Snapshot) -> None:
            raise ApplyError("shapes differ")

        reader.clock.now += 10
        assert reader.subscriber.refresh(reject) is None
        assert reader.subscriber.held == held
        store.calls.clear()
        assert reader.refresh() is None
        assert store.calls["get_blobs"] == 0
        publisher.publish(state(3)).wait(WAIT)
        snapshot = reader.refresh()
    assert snapshot is not None
    assert number_in(snapshot) == 3
    assert snapshot.changed == {"rl_module/p", "counters"}
    assert [(e.operation, e.category) for e in reader.seen(Failed)] == [("apply", "apply")]


def test_other_errors_of_apply_reach_the_caller(store: ScriptedStore) -> None:
    """An error that is not ApplyError is the caller's own: it is raised, the version not taken."""
    reader = Reader(store)
    with publishing(store) as publisher:
        publisher.publish(state(1)).wait(WAIT)

        def broken(snapshot: Snapshot) -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            reader.subscriber.refresh(broken)
    assert reader.subscriber.held is None


def test_threads_never_end_at_the_older_version(store: ScriptedStore) -> None:
    """Two threads that refresh one subscriber apply one after the other, in order: C15."""
    reader = Reader(store)
    order: list[int] = []
    entered, go_on = threading.Event(), threading.Event()

    def slow(snapshot: Snapshot) -> None:
        entered.set()
        assert go_on.wait(WAIT)
        order.append(number_in(snapshot))

    with publishing(store) as publisher:
        publisher.publish(state(6)).wait(WAIT)
        first = threading.Thread(target=reader.subscriber.refresh, args=(slow,))
        first.start()
        assert entered.wait(WAIT)
        publisher.publish(state(7)).wait(WAIT)
        second = threading.Thread(
            target=reader.subscriber.refresh, args=(lambda s: order.append(number_in(s)),)
        )
        second.start()
        second.join(0.05)  # it waits for the first, or this test is in vain
        assert second.is_alive()
        go_on.set()
        first.join(WAIT)
        second.join(WAIT)
    assert order == [6, 7]
    assert reader.subscriber.held == publisher.last_version


def test_forget_fetches_again(store: ScriptedStore) -> None:
    """After the state was changed from outside the newest version is applied again, whole."""
    reader = Reader(store)
    with publishing(store) as publisher:
        publisher.publish(state(1)).wait(WAIT)
        reader.refresh()
        reader.subscriber.forget()
        assert reader.subscriber.held is None
        snapshot = reader.refresh()
    assert snapshot is not None
    assert snapshot.changed == {"rl_module/p", "counters"}
    assert reader.subscriber.held == publisher.last_version


def test_adopt_skips_what_came_another_way(store: ScriptedStore) -> None:
    """A version that was pushed is not fetched; the next one is, with everything as changed."""
    reader = Reader(store)
    with publishing(store) as publisher:
        version = publisher.publish(state(1)).wait(WAIT)
        reader.subscriber.adopt(version)
        assert reader.subscriber.held == version
        assert reader.refresh() is None
        publisher.publish(state(2)).wait(WAIT)
        snapshot = reader.refresh()
        assert snapshot is not None
        assert snapshot.changed == {"rl_module/p", "counters"}
        reader.subscriber.adopt(version)  # late: never goes back
        assert reader.subscriber.held == publisher.last_version


def test_looks_past_claims(store: ScriptedStore) -> None:
    """A claim on top hides no state, and costs later polls nothing."""
    reader = Reader(store)
    with publishing(store) as old:
        old.publish(state(1)).wait(WAIT)
    with publishing(store):
        snapshot = reader.refresh()
        assert snapshot is not None
        assert number_in(snapshot) == 1
        assert reader.refresh() is None
        floor = reader.subscriber._arrivals.poller.floor
        assert floor is not None
        assert floor.is_claim


def test_foreign_states_are_passed_over(
    store: ScriptedStore, caplog: pytest.LogCaptureFixture
) -> None:
    """An EnvRunner never takes another learner's state, and warns of it once: C34, C100."""
    mine = Reader(store, writer="mine")
    anyone = Reader(store)
    with publishing(store, writer_id="mine") as learner:
        learner.publish(state(1)).wait(WAIT)
        mine.refresh()
    with publishing(store, writer_id="theirs") as other, caplog.at_level(logging.WARNING):
        for number in (2, 3):
            other.publish(state(number)).wait(WAIT)
            assert mine.refresh() is None
        snapshot = anyone.refresh()
    assert snapshot is not None
    assert number_in(snapshot) == 3
    assert mine.subscriber.held == learner.last_version
    assert caplog.text.count("another learner") == 1
    with publishing(store, writer_id="mine") as again:
        again.publish(state(4)).wait(WAIT)
        snapshot = mine.refresh()
    assert snapshot is not None
    assert number_in(snapshot) == 4


def test_max_staleness() -> None:
    """Without a new version for longer than allowed refresh raises, naming the namespace: C13."""
    store = MemoryStore()
    reader = Reader(store, "watched", max_staleness_s=60.0)
    with publishing(store, "watched") as publisher:
        for _ in range(5):
            assert reader.refresh() is None
        publisher.publish(state(1)).wait(WAIT)
        assert reader.refresh() is not None
        for _ in range(5):
            assert reader.refresh() is None
        reader.clock.now += 10
        with pytest.raises(StaleStateError, match=r"'watched'.*is a learner publishing there"):
            reader.refresh()
        publisher.publish(state(2)).wait(WAIT)
        assert reader.refresh() is not None


def test_a_forgetful_reader_does_not_go_back(store: ScriptedStore) -> None:
    """After `forget` the version held before may come again, an older one never does: C10, C19."""
    reader = Reader(store)
    with publishing(store) as publisher:
        publisher.publish(state(1)).wait(WAIT)
        version = publisher.publish(state(2)).wait(WAIT)
        publisher.flush(WAIT)
        for _ in range(2):
            snapshot = reader.refresh()
            assert snapshot is not None
            assert snapshot.version == version
            reader.subscriber.forget()
        store.drop(publisher.keys, [version], [], timeout=1)  # as a failover does
        assert reader.refresh() is None


def test_applies_only_within_refresh(store: ScriptedStore) -> None:
    """A version is applied by `refresh`, on its caller's thread, and by nothing else: C21."""
    applied_on: list[threading.Thread] = []
    subscriber = StateSubscriber(store, "n")
    with publishing(store) as publisher:
        for number in (1, 2):
            publisher.publish(state(number)).wait(WAIT)
            # A forward pass goes on here, while another thread looks and fetches.
            other = threading.Thread(target=lambda: (subscriber.poll(), subscriber.fetch()))
            other.start()
            other.join(WAIT)
            assert len(applied_on) == number - 1
            subscriber.refresh(lambda s: applied_on.append(threading.current_thread()))
    assert applied_on == [threading.main_thread()] * 2


def test_each_reader_fetches_for_itself(store: ScriptedStore) -> None:
    """Without a cache on the host eight readers fetch eight times, and the numbers say so: C68."""
    readers = [Reader(store) for _ in range(8)]
    with publishing(store) as publisher:
        publisher.publish(state(1)).wait(WAIT)
        for reader in readers:
            reader.refresh()
        sent = publisher.stats.bytes_sent
    fetched = [e.bytes_fetched for reader in readers for e in reader.seen(Fetched)]
    assert fetched == [sent] * 8
    assert store.calls["get_blobs"] == 8


def test_wait_for(store: ScriptedStore) -> None:
    """`wait_for` returns once the version is held, and names what is missing when it gives up."""
    subscriber = StateSubscriber(store, "n")
    with publishing(store) as publisher:
        with pytest.raises(StaleStateError, match=r"'n'.*nothing"):
            subscriber.wait_for(lambda s: None, timeout=0.0)
        version = publisher.publish(state(1)).wait(WAIT)
        assert subscriber.wait_for(lambda s: None, version=version, timeout=WAIT) == version
        later = Version(version.generation, 99)
        with pytest.raises(StaleStateError, match=f"no version {later}"):
            subscriber.wait_for(lambda s: None, version=later, timeout=0.0)


def test_travels_without_progress() -> None:
    """A pickled subscriber keeps its settings, and begins anew, under a name of its own: C91."""
    subscriber = StateSubscriber(
        open_store("redis://127.0.0.1:1"), "n", writer="w", poll_timeout_s=0.25
    )
    subscriber.adopt(Version(3, 3))
    subscriber.name = "elsewhere"
    other = pickle.loads(pickle.dumps(subscriber))
    assert other.held is None
    assert (other.writer, other.keys.namespace, other._poll_timeout_s) == ("w", "n", 0.25)
    assert other.name != "elsewhere"
    assert subscriber.held == Version(3, 3)
    named = pickle.loads(pickle.dumps(StateSubscriber(open_store("redis://h"), "n", name="me")))
    assert named.name == "me"


# Forking with threads is what is under test.
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_in_the_middle_of_a_refresh(redis_state_server: EmbeddedServer) -> None:
    """A child forked while another thread applies a version is not locked out, and begins anew,
    with the version that its parent held or a newer one: C90.
    """
    with publishing(open_store(redis_state_server.url)) as publisher:
        subscriber = StateSubscriber(open_store(redis_state_server.url), "n", poll_timeout_s=WAIT)
        first = publisher.publish(state(1)).wait(WAIT)
        subscriber.refresh(lambda s: None)
        second = publisher.publish(state(2)).wait(WAIT)
        applying, go_on = threading.Event(), threading.Event()

        def apply(snapshot: Snapshot) -> None:
            applying.set()
            assert go_on.wait(WAIT)

        def child() -> None:
            snapshot = subscriber.refresh(lambda s: None)
            assert snapshot is not None
            assert subscriber.held == snapshot.version == second
            assert number_in(snapshot) == 2
            assert snapshot.changed == set(snapshot)  # Its parent's may be applied by half.
            assert subscriber.name.endswith(f":{os.getpid()}")

        thread = threading.Thread(target=subscriber.refresh, args=(apply,))
        thread.start()
        assert applying.wait(WAIT)
        try:
            assert in_child(child) == 0
            assert subscriber.held == first
        finally:
            go_on.set()
            thread.join(WAIT)
        assert subscriber.held == second
        subscriber.close()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_does_not_go_back(redis_state_server: EmbeddedServer) -> None:
    """A forked child takes no version older than its parent's after the store lost it: C10, C90."""
    store = open_store(redis_state_server.url)
    subscriber = StateSubscriber(store, "n", poll_timeout_s=WAIT)
    with publishing(open_store(redis_state_server.url)) as publisher:
        publisher.publish(state(1)).wait(WAIT)
        newest = publisher.publish(state(2)).wait(WAIT)
        subscriber.refresh(lambda s: None)
        store.drop(publisher.keys, [newest], [], timeout=WAIT)

        def child() -> None:
            assert subscriber.refresh(lambda s: None) is None

        assert in_child(child) == 0
    subscriber.close()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_memory_is_not_shared_with_a_child() -> None:
    """A store in memory says so in a forked child, where no new version would ever come: C90."""
    store = MemoryStore("mine")
    subscriber = StateSubscriber(store, "n")

    def child() -> None:
        with pytest.raises(StoreUnavailableError, match="memory://mine lives in one process"):
            subscriber.poll()
        assert subscriber.refresh(lambda s: None) is None

    with store._own_lock:
        assert in_child(child) == 0
    assert subscriber.poll() is None


def test_fetch_moves_nothing(store: ScriptedStore) -> None:
    """`fetch` and `poll` look without applying: a later refresh still applies the version."""
    reader = Reader(store)
    with publishing(store) as publisher:
        publisher.publish(state(1)).wait(WAIT)
        snapshot = reader.subscriber.fetch()
        assert snapshot is not None
        assert number_in(snapshot) == 1
        assert reader.subscriber.poll() == snapshot.version
        assert reader.subscriber.held is None
        assert reader.refresh() is not None
    assert reader.seen(Applied)[0].version == snapshot.version


def test_a_snapshots_arrays_are_the_callers_own(store: ScriptedStore) -> None:
    """In-place changes of a component reach no later look-up, and `in` decodes nothing."""
    reader = Reader(store)
    with publishing(store) as publisher:
        publisher.publish(state(1)).wait(WAIT)
        snapshot = reader.refresh()
    assert snapshot is not None
    snapshot["rl_module/p"]["w"] += 5
    assert number_in(snapshot) == 1
    assert sorted(snapshot) == ["counters", "rl_module/p"]
    assert len(snapshot) == 2
    snapshot._blobs = {"bad": b"not a blob"}
    assert "bad" in snapshot


def test_readers_leave_a_note(store: ScriptedStore) -> None:
    """A fetch, and only a fetch, notes the reader's version for `status`."""
    reader = Reader(store)
    with publishing(store) as publisher:
        version = publisher.publish(state(1)).wait(WAIT)
        reader.refresh()
        reader.refresh()
    assert store.calls["note_reader"] == 1
    assert isinstance(store.inner, MemoryStore)
    notes = store.inner._values[publisher.keys.readers]
    assert notes["me"].startswith(f"{version} ")


def test_the_clock_is_only_read() -> None:
    """A subscriber with a clock that stands still works: no rule needs real time."""
    store, clock = MemoryStore(), Clock()
    subscriber = StateSubscriber(store, "n", clock=clock)
    with publishing(store) as publisher:
        publisher.publish(state(1)).wait(WAIT)
        assert subscriber.refresh(lambda s: None) is not None
