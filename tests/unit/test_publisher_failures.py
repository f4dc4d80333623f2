"""The writing side when the store fails, or another learner takes over."""

from __future__ import annotations

import logging
import threading
import time

import pytest

from redis_state_sync import (
    Keyring,
    PublishTimeoutError,
    StalePublisherError,
    StatePublisher,
    StoreError,
    Version,
    errors,
)
from redis_state_sync.announcer import Announcer
from redis_state_sync.blobs import Blob
from redis_state_sync.codec import encode
from redis_state_sync.decisions import Cooldown
from redis_state_sync.events import Event, Failed
from redis_state_sync.keys import Keys
from redis_state_sync.manifest import Manifest, Writer
from redis_state_sync.memory_store import MemoryStore
from redis_state_sync.store import Store
from redis_state_sync.testing import ScriptedStore
from tests.unit.states import WAIT, Reader, number_in, publishing, state

DOWN = errors.StoreUnavailableError("connection refused")


@pytest.fixture
def store(redis_state_scripted_store: ScriptedStore) -> ScriptedStore:
    return redis_state_scripted_store


def wipe(store: ScriptedStore) -> None:
    """What FLUSHALL or a restart without persistence does."""
    assert isinstance(store.inner, MemoryStore)
    store.inner._values.clear()


def test_fails_at_start(store: ScriptedStore) -> None:
    """A store that can not be reached when the learner starts is an error there: C33."""
    store.go_down(DOWN)
    with pytest.raises(errors.StoreUnavailableError):
        StatePublisher(store, "n")


def test_a_store_that_comes_back(store: ScriptedStore, caplog: pytest.LogCaptureFixture) -> None:
    """Publishing goes on through an outage, warns once, and the newest state is stored after it."""
    reader = Reader(store)
    events: list[Event] = []
    caplog.set_level(logging.INFO, "redis_state_sync")
    with publishing(store, observers=[events.append]) as publisher:
        store.go_down(DOWN)
        for number in (1, 2, 3):
            handle = publisher.publish(state(number))
            with pytest.raises(errors.StoreUnavailableError):
                handle.wait(WAIT, fail_fast=True)
        assert not publisher.healthy
        store.come_back()
        assert handle.wait(WAIT) == handle.version
        assert publisher.healthy
        assert publisher.stats.dropped == 2
        snapshot = reader.refresh()
    assert snapshot is not None
    assert number_in(snapshot) == 3
    failures = [e for e in events if isinstance(e, Failed)]
    assert {(e.operation, e.category) for e in failures} == {("publish", "network")}
    assert publisher.stats.failures == {"network": len(failures)}
    warnings = [r for r in caplog.records if r.levelname == "WARNING"]
    assert len(warnings) == 1
    assert "is back" in caplog.text


def test_it_comes_back_by_itself(store: ScriptedStore) -> None:
    """Nobody waits for it, and yet a failed publish is tried again until it succeeds."""
    with publishing(store) as publisher:
        store.fail_next("refresh", DOWN, times=2)
        publisher.publish(state(1))
        store.wait_for_calls("append", 2)  # the claim, then the third try
        assert publisher.flush(WAIT) == Version(publisher.generation, 1)


def test_who_waits_need_not_sit_out_the_cool_down(store: ScriptedStore) -> None:
    """Waiting for a version makes the publisher try at once, however long it would have waited."""
    with publishing(store) as publisher:
        store.fail_next("refresh", DOWN)
        handle = publisher.publish(state(1))
        with pytest.raises(StoreError):
            handle.wait(WAIT, fail_fast=True)
        for wait in (handle.wait, publisher.flush):
            with publisher._changed:
                publisher._cooldown = Cooldown(1, time.monotonic() + 3600)
            if wait == publisher.flush:
                publisher.publish(state(2))
            assert wait(WAIT) == publisher.last_version


def test_a_failed_state_gives_way_to_the_one_behind_it(store: ScriptedStore) -> None:
    """Who waits for a state that failed is served by the newer one that was waiting: C1."""
    with publishing(store) as publisher:
        with store.paused("put_blobs"):
            first = publisher.publish(state(1))
            store.wait_for_calls("put_blobs", 1)
            second = publisher.publish(state(2))
            store.fail_next("put_blobs", DOWN)
        assert first.wait(WAIT) == second.wait(WAIT) == second.version
        assert (publisher.stats.dropped, publisher.stats.publishes) == (1, 1)


def test_wait_times_out(store: ScriptedStore) -> None:
    """A wait that is too short raises and names the last error; publishing goes on: C32."""
    with publishing(store) as publisher:
        store.go_down(DOWN)
        handle = publisher.publish(state(1))
        with pytest.raises(StoreError):
            handle.wait(WAIT, fail_fast=True)
        with pytest.raises(PublishTimeoutError, match="connection refused") as caught:
            handle.wait(0.01)
        assert isinstance(caught.value, TimeoutError)
        with pytest.raises(PublishTimeoutError):
            publisher.flush(0.01)
        store.come_back()
        assert publisher.flush(WAIT) == handle.version


@pytest.mark.parametrize("operation", ["refresh", "put_blobs", "append"])
def test_a_lost_reply_is_safe_to_resend(store: ScriptedStore, operation: str) -> None:
    """A step that was done but whose reply was lost is repeated, with the same result: C76."""
    reader = Reader(store)
    with publishing(store) as publisher:
        store.lose_reply(operation, errors.StoreTimeoutError("reply lost"))
        handle = publisher.publish(state(1))
        assert handle.wait(WAIT) == handle.version == Version(publisher.generation, 1)
        assert store.newest(publisher.keys, timeout=1)[0].version == handle.version
        snapshot = reader.refresh()
        assert snapshot is not None
        assert number_in(snapshot) == 1
        publisher.publish(state(2)).wait(WAIT)


def test_a_failing_clean_up_harms_no_version(store: ScriptedStore) -> None:
    """A version is stored although dropping old ones failed; they are dropped later: C66."""
    with publishing(store, history=1) as publisher:
        store.fail_next("drop", DOWN)
        for number in (1, 2):
            publisher.publish(state(number)).wait(WAIT)
        publisher.publish(state(3)).wait(WAIT)
        publisher.flush(WAIT)
        assert len(store.newest(publisher.keys, count=9, timeout=1)) == 1
        assert publisher.stats.failures == {"network": 1}


def test_a_clean_up_that_never_works_warns_once(
    store: ScriptedStore, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that lets nobody delete is counted each time and warned of once."""
    with publishing(store, history=1) as publisher:
        store.fail_next("drop", StoreError("unknown command 'UNLINK'"), times=3)
        for number in range(6):
            publisher.publish(state(number)).wait(WAIT)
            publisher.flush(WAIT)
        # The next version clears up, too, and does not count it.
        assert publisher.stats.failures.keys() == {"server"}
        assert publisher.stats.failures["server"] >= 2
        assert caplog.text.count("retain failed") == 1
        store.fail_next("drop", DOWN)
        publisher.publish(state(7)).wait(WAIT)
        publisher.flush(WAIT)
    assert caplog.text.count("retain failed") == 2


def test_a_clean_up_without_the_key_keeps_the_thread_alive(store: ScriptedStore) -> None:
    """A signing key that is gone while old versions are looked at ends no publisher."""
    keys = ["k" * 32]
    with publishing(store, keyring=Keyring(lambda: "".join(keys))) as publisher:
        looks = store.calls["newest"]
        with store.paused("newest"):
            publisher.publish(state(1)).wait(WAIT)
            store.wait_for_calls("newest", looks + 1)
            publisher._announcer.retention._stored.clear()  # So that it reads every record.
            key = keys.pop()
        publisher.flush(WAIT)
        assert publisher.stats.failures == {"settings": 1}
        keys.append(key)
        assert publisher.publish(state(2)).wait(WAIT).number == 2


def test_a_wiped_store_is_filled_by_the_heartbeat(store: ScriptedStore) -> None:
    """Redis that came back empty gets the newest state again, with no publish: C28, C63."""
    reader = Reader(store)
    with publishing(store, heartbeat_s=0.02) as publisher:
        first = publisher.publish(state(1)).wait(WAIT)
        reader.refresh()
        wipe(store)
        calls = store.calls["append"]
        store.wait_for_calls("append", calls + 1)
        publisher.flush(WAIT)
        snapshot = reader.refresh()
        assert snapshot is not None
        assert number_in(snapshot) == 1
        assert snapshot.version > first


def test_an_evicted_blob_is_restored_by_the_heartbeat(store: ScriptedStore) -> None:
    """A blob of the newest version that was evicted comes back, with no publish: C63."""
    with publishing(store, heartbeat_s=0.02) as publisher:
        publisher.publish(state(1)).wait(WAIT)
        manifest = Manifest.decode(store.newest(publisher.keys, timeout=1)[0].manifest)
        calls = store.calls["put_blobs"]
        store.drop(publisher.keys, [], [next(iter(manifest.digests()))], timeout=1)
        store.wait_for_calls("put_blobs", calls + 1)
        publisher.flush(WAIT)
        snapshot = Reader(store).refresh()
    assert snapshot is not None
    assert number_in(snapshot) == 1


def test_a_wiped_store_heals_with_the_next_publish(store: ScriptedStore) -> None:
    """What the store lost is uploaded again by a publish that changes only a part: C63."""
    with publishing(store) as publisher:
        publisher.publish(state(1)).wait(WAIT)
        wipe(store)
        publisher.publish({"extra": 1}).wait(WAIT)
        snapshot = Reader(store).refresh()
    assert snapshot is not None
    assert number_in(snapshot) == 1


def test_a_failover_that_lost_the_newest_versions(store: ScriptedStore) -> None:
    """When the store has gone back, the next version is greater than any one published: C19."""
    with publishing(store, heartbeat_s=0.02) as publisher:
        for number in (1, 2):
            publisher.publish(state(number)).wait(WAIT)
        last = publisher.last_version
        assert last is not None
        calls = store.calls["append"]
        store.drop(publisher.keys, [last], [], timeout=1)
        store.wait_for_calls("append", calls + 1)
        assert publisher.flush(WAIT) == Version(last.generation, last.number + 1)
        snapshot = Reader(store).refresh()
    assert snapshot is not None
    assert number_in(snapshot) == 2


def test_the_heartbeat_survives_an_outage(store: ScriptedStore) -> None:
    """An outage with nothing to publish is noticed, and so is its end: C13."""
    with publishing(store, heartbeat_s=0.01) as publisher:
        publisher.publish(state(1)).wait(WAIT)
        store.go_down(DOWN)
        calls = store.calls["newest"]
        store.wait_for_calls("newest", calls + 2)
        assert not publisher.healthy
        store.come_back()
        calls = store.calls["newest"]
        store.wait_for_calls("newest", calls + 2)
        assert publisher.healthy


def test_a_slow_run_does_not_expire() -> None:
    """A learner that publishes nothing for days keeps its namespace; a dead one's goes: C67."""
    now = 5_000.0
    store, keys = MemoryStore(clock=lambda: now), Keys("n")
    announcer = announcing(store, history=2)
    for number in (1, 2):
        announcer.announce(number, blobs(number), None)
        announcer.retain()
    store.set_pin(keys, "best", Version(announcer.generation, 1), timeout=1)
    for _ in range(100):
        now += 60
        assert announcer.look_after() is False
    entries = store.newest(keys, count=9, timeout=1)
    newest, pinned = (list(Manifest.decode(entry.manifest).digests()) for entry in entries)
    assert None not in store.get_blobs(keys, newest + pinned, timeout=1)
    now += 101
    assert store.newest(keys, timeout=1) == []
    assert store.pins(keys, timeout=1).keys() == {"best"}
    there = dict(zip(newest, store.get_blobs(keys, newest, timeout=1), strict=True))
    assert [digest for digest, blob in there.items() if blob] == [d for d in newest if d in pinned]
    assert None in there.values()
    assert None not in store.get_blobs(keys, pinned, timeout=1)


def announcing(store: Store, *, history: int) -> Announcer:
    """A publisher without a thread."""
    return Announcer(
        store,
        Keys("n"),
        Writer("w", "host", 1),
        history=history,
        ttl_s=100.0,
        probe_timeout_s=1,
        transfer_timeout_s=1,
    )


def blobs(number: int) -> dict[str, Blob]:
    return {name: Blob(encode(tree)) for name, tree in state(number).items()}


def test_a_full_store_keeps_the_newest_version(store: ScriptedStore) -> None:
    """A full store loses what it can spare, never the version that readers act with: C29, C61."""
    announcer = announcing(store, history=3)
    versions = [Version(announcer.generation, number) for number in range(1, 4)]
    for version in versions:
        announcer.announce(version.number, blobs(version.number), None)
        announcer.retain()
    store.lose_reply("put_blobs", errors.StoreFullError("used memory > maxmemory"))
    with pytest.raises(errors.StoreFullError):
        announcer.announce(4, blobs(4), None)
    assert [e.version for e in store.newest(announcer.keys, count=9, timeout=1)] == [versions[2]]
    # Of the one that failed nothing is left, of the newest everything.
    assert isinstance(store.inner, MemoryStore)
    assert len([key for key in store.inner._values if ":blob:" in key]) == 2
    snapshot = Reader(store).refresh()
    assert snapshot is not None
    assert number_in(snapshot) == 3
    announcer.announce(5, blobs(5), None)


@pytest.mark.parametrize("published", [False, True])
def test_a_lost_claim_is_put_back(published: bool) -> None:
    """A claim that the store lost fences older learners again, before there is a version: C15."""
    store = MemoryStore()
    old, new = announcing(store, history=1), announcing(store, history=1)
    if published:
        new.announce(1, blobs(1), None)
    store._values.clear()
    assert new.look_after() is published
    if published:
        new.announce(2, blobs(1), None)
    with pytest.raises(StalePublisherError):
        old.announce(1, blobs(2), None)


def test_a_successor_that_came_after_the_loss_is_obeyed() -> None:
    """A lost claim is not put back above a newer learner's."""
    now = 5_000.0
    store = MemoryStore(clock=lambda: now)
    old = announcing(store, history=1)
    store._values.clear()
    now += 1
    new = announcing(store, history=1)
    with pytest.raises(StalePublisherError):
        old.look_after()
    new.announce(1, blobs(1), None)


def test_unreadable_records_go_in_their_turn() -> None:
    """What can not be read counts as no version and leaves once all that is kept is newer: C66."""
    store, keys = MemoryStore(), Keys("n")
    store.append(keys, Version(1, 1), b"of another format", ttl_s=99, timeout=1)
    announcer = announcing(store, history=2)
    for number in (1, 2, 3):
        announcer.announce(number, blobs(number), None)
        announcer.retain()
        versions = [e.version for e in store.newest(keys, count=9, timeout=1)]
        assert (Version(1, 1) in versions) is False
    assert [v.number for v in versions] == [3, 2]
    junk = Version(announcer.generation, 4)
    store.append(keys, junk, b"of another format", ttl_s=99, timeout=1)
    announcer.announce(5, blobs(5), None)
    announcer.retain()
    assert [e.version.number for e in store.newest(keys, count=9, timeout=1)] == [5, 4, 3]
    announcer.announce(6, blobs(6), None)
    announcer.retain()
    assert [e.version.number for e in store.newest(keys, count=9, timeout=1)] == [6, 5]


def test_a_version_whose_reply_was_lost_is_dropped_too(store: ScriptedStore) -> None:
    """What was stored without the learner's knowledge goes like any other version: C28, C66."""
    with publishing(store, history=1) as publisher:
        store.lose_reply("append", errors.StoreTimeoutError("reply lost"))
        with store.paused("append"):
            publisher.publish(state(1))
            store.wait_for_calls("append", 2)
            publisher.publish(state(2))  # Replaces the first, which is stored none the less.
        publisher.flush(WAIT)
        publisher.publish(state(3)).wait(WAIT)
        publisher.flush(WAIT)
        stored = [e.version for e in store.newest(publisher.keys, count=9, timeout=1)]
        assert stored == [publisher.last_version]


def test_the_older_learner_is_refused(store: ScriptedStore) -> None:
    """After a take-over the older learner's publish is refused, naming who took over: C15, C34."""
    reader = Reader(store)
    with publishing(store, writer_id="old") as old:
        old.publish(state(1)).wait(WAIT)
        with publishing(store, writer_id="new-learner") as new:
            handle = old.publish(state(2))
            with pytest.raises(StalePublisherError, match=r"new-learner.*must stop") as caught:
                handle.wait(WAIT)
            assert str(new.generation) in str(caught.value)
            with pytest.raises(StalePublisherError):
                old.publish(state(3))
            with pytest.raises(StalePublisherError):
                old.flush(WAIT)
            old._thread.join(WAIT)
            assert not old._thread.is_alive()
            new.publish(state(9)).wait(WAIT)
            snapshot = reader.refresh()
            assert snapshot is not None
            assert number_in(snapshot) == 9
            versions = [e.version for e in store.newest(new.keys, count=9, timeout=1)]
            assert Version(old.generation, 2) not in versions


def test_an_idle_older_learner_notices(store: ScriptedStore) -> None:
    """A learner that publishes nothing learns of a take-over by its heartbeat: C34."""
    with publishing(store, heartbeat_s=0.01) as old, publishing(store, writer_id="new"):
        old._thread.join(WAIT)
        assert not old._thread.is_alive()
        with pytest.raises(StalePublisherError, match="'new'"):
            old.publish(state(1))


def test_a_refused_publish_releases_all_who_wait(store: ScriptedStore) -> None:
    """Everyone who waits for a refused learner is told, those behind it in the queue too: C32."""
    with publishing(store) as old:
        with store.paused("append"):
            handles = [old.publish(state(1))]
            store.wait_for_calls("append", 2)
            handles += [old.publish(state(2)), old.publish(state(3))]
            keys, newer = old.keys, Version(old.generation + 1, 0)
            manifest = Manifest(Writer("other", "h", 1), 0)
            store.inner.append(keys, newer, manifest.encode(), ttl_s=60, timeout=1)
        for handle in handles:
            with pytest.raises(StalePublisherError, match="'other'"):
                handle.wait(WAIT)


def test_a_refusal_that_a_heartbeat_meets(
    store: ScriptedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who publishes while a heartbeat finds the learner refused is told, and does not wait: C16."""
    handles = []

    def refused(announcer: Announcer) -> bool:
        handles.append(publisher.publish(state(1)))
        raise StalePublisherError("taken over by 'other'")

    monkeypatch.setattr(Announcer, "look_after", refused)
    publisher = StatePublisher(store, "n", heartbeat_s=0.01)
    while not handles:
        time.sleep(0.001)
    started = time.monotonic()
    with pytest.raises(StalePublisherError, match="'other'"):
        handles[0].wait(WAIT)
    assert time.monotonic() - started < WAIT / 2
    publisher.close()


def test_a_store_wiped_during_the_refusal_is_no_take_over(store: ScriptedStore) -> None:
    """A refusal that nobody's record explains is tried again, not taken for a take-over: C34."""
    with publishing(store) as publisher:
        store.fail_next("append", errors.NotNewerError("not newer"))
        wipe(store)
        handle = publisher.publish(state(1))
        assert handle.wait(WAIT) == handle.version
        assert publisher.stats.failures == {"fenced": 1}
        publisher.publish(state(2)).wait(WAIT)


def test_two_claims_at_once(store: ScriptedStore) -> None:
    """Learners that claim at the same moment get different generations, the later one wins: C15."""
    barrier = threading.Barrier(2)
    real, raced = store.time_ms, threading.local()

    def together(*, timeout: float) -> int:
        if not getattr(raced, "done", False):
            raced.done = True
            barrier.wait(WAIT)
        return min(real(timeout=timeout), 1000)

    store.time_ms = together  # type: ignore[method-assign]
    made: list[StatePublisher] = []
    threads = [
        threading.Thread(target=lambda: made.append(StatePublisher(store, "n", heartbeat_s=3600)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    older, newer = sorted(made, key=lambda p: p.generation)
    try:
        assert newer.generation > older.generation
        newer.publish(state(1)).wait(WAIT)
        with pytest.raises(StalePublisherError):
            older.publish(state(2)).wait(WAIT)
    finally:
        for publisher in made:
            publisher.close()


def test_claiming_ends_in_time(store: ScriptedStore) -> None:
    """A namespace that others keep claiming gives an error within the time allowed: C32."""
    store.fail_next("append", errors.NotNewerError("not newer"), times=1_000_000)
    with pytest.raises(errors.StoreTimeoutError, match="other learners"):
        StatePublisher(store, "n", connect_timeout_s=0.02)


def test_a_generation_grows_though_the_clock_went_back() -> None:
    """A learner restarted on a machine with an older clock still takes over: C11."""
    now = 5_000.0
    store = MemoryStore(clock=lambda: now)
    with publishing(store) as first:
        first.publish(state(1)).wait(WAIT)
    now = 1_000.0
    with publishing(store) as second:
        assert second.generation == first.generation + 1
        assert second.publish(state(2)).wait(WAIT) > Version(first.generation, 1)


def test_an_unexpected_error_keeps_the_thread_alive(
    store: ScriptedStore, caplog: pytest.LogCaptureFixture
) -> None:
    """A bug in a store is logged with its traceback, reported as StoreError, and tried again."""
    with publishing(store) as publisher:
        store.fail_next("refresh", ZeroDivisionError("bug"))
        handle = publisher.publish(state(1))
        with pytest.raises(StoreError, match="ZeroDivisionError"):
            handle.wait(WAIT, fail_fast=True)
        assert handle.wait(WAIT) == handle.version
    assert "Traceback" in caplog.text


def test_closing_during_an_outage_does_not_hang(store: ScriptedStore) -> None:
    """`close` gives up at once on a store that is known to be down: C32."""
    publisher = StatePublisher(store, "n", heartbeat_s=3600)
    store.go_down(DOWN)
    with pytest.raises(StoreError):
        publisher.publish(state(1)).wait(WAIT, fail_fast=True)
    publisher.close(WAIT)
    publisher._thread.join(WAIT)
    assert not publisher._thread.is_alive()


def test_older_learners_leave_no_claim_behind(store: ScriptedStore) -> None:
    """Claims of earlier learners are dropped like versions: a restart loop fills nothing: C66."""
    for number in range(5):
        with publishing(store, history=2) as publisher:
            publisher.publish(state(number)).wait(WAIT)
            publisher.flush(WAIT)
    assert len(store.newest(Keys("n"), count=99, timeout=1)) == 2
