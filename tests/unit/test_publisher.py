"""The writing side, over a store in memory."""

from __future__ import annotations

import gc
import pickle
import threading
import weakref
from typing import Any

import numpy as np
import pytest

from redis_state_sync import SettingsError, Version
from redis_state_sync.errors import EncodeError
from redis_state_sync.events import Event, Published
from redis_state_sync.keys import Keys
from redis_state_sync.manifest import Manifest
from redis_state_sync.publisher import StatePublisher
from redis_state_sync.testing import ScriptedStore
from tests.unit.states import WAIT, Reader, number_in, publishing, state


@pytest.fixture
def store(redis_state_scripted_store: ScriptedStore) -> ScriptedStore:
    return redis_state_scripted_store


def stored_versions(store: ScriptedStore, keys: Keys) -> list[Version]:
    return [entry.version for entry in store.newest(keys, count=999, timeout=1)]


def test_read_your_writes(store: ScriptedStore) -> None:
    """When `wait` returns, every later poll of anyone sees that version: C2."""
    reader = Reader(store)
    with publishing(store) as publisher:
        for number in range(1, 20):
            version = publisher.publish(state(number)).wait(WAIT)
            assert reader.subscriber.poll() == version
            snapshot = reader.refresh()
            assert snapshot is not None
            assert number_in(snapshot) == number


def test_publish_does_not_wait(store: ScriptedStore) -> None:
    """Publishing returns a handle at once; a version is announced after its blobs: C2, C16, C71."""
    with publishing(store) as publisher:
        with store.paused("put_blobs"):
            handle = publisher.publish(state(1))
            store.wait_for_calls("put_blobs", 1)
            assert Reader(store).subscriber.poll() is None
            assert handle.stored is None
            assert publisher.last_version is None
        assert handle.wait(WAIT) == publisher.last_version == handle.version


def test_the_latest_state_wins(store: ScriptedStore) -> None:
    """Of states that wait only the newest goes out; the others count as dropped: C1, C71."""
    reader = Reader(store)
    with publishing(store) as publisher:
        with store.paused("put_blobs"):
            first = publisher.publish(state(1))
            store.wait_for_calls("put_blobs", 1)
            handles = [publisher.publish(state(number)) for number in range(2, 6)]
        versions = {handle.wait(WAIT) for handle in handles}
        assert versions == {handles[-1].version}
        assert first.wait(WAIT) == first.version
        assert publisher.stats.dropped == 3
        assert publisher.stats.publishes == 2
        snapshot = reader.refresh()
        assert snapshot is not None
        assert number_in(snapshot) == 5
        assert stored_versions(store, publisher.keys)[:2] == [handles[-1].version, first.version]


def test_versions_grow_by_one(store: ScriptedStore) -> None:
    """Versions are numbered from 1 within the generation, those of dropped states included."""
    with publishing(store) as publisher:
        numbers = [publisher.publish(state(n)).version for n in (1, 2, 3)]
    assert numbers == [Version(publisher.generation, n) for n in (1, 2, 3)]


def test_the_state_is_copied_before_publish_returns(store: ScriptedStore) -> None:
    """What the learner changes after `publish` does not reach the published version."""
    reader = Reader(store)
    weights = np.zeros(4)
    with publishing(store) as publisher:
        with store.paused("put_blobs"):
            handle = publisher.publish({"rl_module/p": weights})
            weights += 1
        handle.wait(WAIT)
        snapshot = reader.refresh()
    assert snapshot is not None
    assert (snapshot["rl_module/p"] == 0).all()


def test_absent_components_are_carried_forward(store: ScriptedStore) -> None:
    """What one publish leaves out keeps what it had, weights_seq_no included: C6, C25."""
    reader = Reader(store)
    with publishing(store) as publisher:
        publisher.publish({"a": 1, "b": 1}, weights_seq_no=7).wait(WAIT)
        publisher.publish({"b": 2}).wait(WAIT)
        snapshot = reader.refresh()
        assert snapshot is not None
        assert (dict(snapshot), snapshot.weights_seq_no) == ({"a": 1, "b": 2}, 7)
        with store.paused("put_blobs"):
            publisher.publish({"a": 3}, weights_seq_no=8)
            store.wait_for_calls("put_blobs", 3)
            publisher.publish({"a": 4})
            handle = publisher.publish({"b": 5})
        handle.wait(WAIT)
        snapshot = reader.refresh()
    assert snapshot is not None
    assert (dict(snapshot), snapshot.weights_seq_no) == ({"a": 4, "b": 5}, 8)


def test_only_if_changed(store: ScriptedStore) -> None:
    """An equal state announces no new version, a changed one does; by default every one does."""
    with publishing(store) as publisher:
        first = publisher.publish(state(1), weights_seq_no=1).wait(WAIT)
        same = publisher.publish(state(1), weights_seq_no=1, only_if_changed=True)
        assert same.wait(WAIT) == first
        assert publisher.publish({}, only_if_changed=True).wait(WAIT) == first
        assert (
            publisher.publish(state(1), weights_seq_no=2, only_if_changed=True).wait(WAIT) > first
        )
        newer = publisher.publish(state(2), only_if_changed=True).wait(WAIT)
        assert publisher.publish(state(2)).wait(WAIT) > newer
        assert publisher.stats.publishes == 4


def test_only_if_changed_does_not_swallow_a_forced_publish(store: ScriptedStore) -> None:
    """A publish that must announce does so, also when a careful one replaced it in the queue."""
    with publishing(store) as publisher:
        first = publisher.publish(state(1)).wait(WAIT)
        with store.paused("refresh"):
            publisher.publish(state(1))
            store.wait_for_calls("refresh", 2)
            forced = publisher.publish(state(1))
            careful = publisher.publish(state(1), only_if_changed=True)
        assert careful.wait(WAIT) == forced.wait(WAIT) == careful.version > first


def test_unchanged_blobs_are_not_sent_again(store: ScriptedStore) -> None:
    """A frozen component is uploaded once, and the saved bytes are counted: C42."""
    events: list[Event] = []
    with publishing(store, observers=[events.append]) as publisher:
        for number in (1, 2):
            publisher.publish({"frozen": np.zeros(10_000), "p": number}).wait(WAIT)
    first, second = (e for e in events if isinstance(e, Published))
    assert first.bytes_sent > 80_000
    assert first.bytes_saved == 0
    assert second.bytes_sent < 1000
    assert second.bytes_saved > 80_000
    assert publisher.stats.bytes_saved == second.bytes_saved


def test_history(store: ScriptedStore) -> None:
    """After any number of publishes there are `history` versions and their blobs: C29, C66."""
    with publishing(store, history=3) as publisher:
        for number in range(1, 30):
            publisher.publish({"p": number}).wait(WAIT)
        publisher.flush(WAIT)
        versions = stored_versions(store, publisher.keys)
        assert versions == [Version(publisher.generation, n) for n in (29, 28, 27)]
        blobs = [k for k in store.inner._values if ":blob:" in k]  # type: ignore[attr-defined]
        assert len(blobs) == 3


def test_the_first_state_of_a_new_learner_keeps_the_old_ones(store: ScriptedStore) -> None:
    """With history=1 the version before stays readable until the next is complete: C29."""
    with publishing(store, history=1) as old:
        before = old.publish(state(1)).wait(WAIT)
    with publishing(store, history=1) as new:
        assert before in stored_versions(store, new.keys)
        with store.paused("append"):
            handle = new.publish(state(2))
            store.wait_for_calls("append", 4)
            snapshot = Reader(store).refresh()
            assert snapshot is not None
            assert number_in(snapshot) == 1
        handle.wait(WAIT)
        new.flush(WAIT)
        assert stored_versions(store, new.keys) == [handle.version]


@pytest.mark.parametrize("bad", [-1, True, "3", 1.0, 2**63, np.int64(3)], ids=repr)
def test_bad_weights_seq_no(store: ScriptedStore, bad: Any) -> None:
    """A weights_seq_no that is no int in [0, 2**63) is a ValueError, and nothing is written: C7."""
    with publishing(store) as publisher:
        store.calls.clear()
        with pytest.raises(SettingsError, match="weights_seq_no"):
            publisher.publish(state(1), weights_seq_no=bad)
        with pytest.raises(ValueError, match="weights_seq_no"):
            publisher.publish(state(1), weights_seq_no=bad)
        assert publisher.flush(WAIT) is None
        assert store.calls == {}


def test_weights_seq_no_is_optional(store: ScriptedStore) -> None:
    """A state without WEIGHTS_SEQ_NO has None, and 0 is not made of it: C7."""
    with publishing(store) as publisher:
        publisher.publish(state(1)).wait(WAIT)
        manifest = Manifest.decode(store.newest(publisher.keys, timeout=1)[0].manifest)
        assert manifest.weights_seq_no is None
        publisher.publish(state(1), weights_seq_no=0).wait(WAIT)
        manifest = Manifest.decode(store.newest(publisher.keys, timeout=1)[0].manifest)
        assert manifest.weights_seq_no == 0


@pytest.mark.parametrize(
    "components",
    [{"good": 1, "conn": {"cache": {1, 2}}}, {"conn": object()}, {"": 1}, {5: 1}],
    ids=str,
)
def test_what_can_not_be_encoded_leaves_nothing(store: ScriptedStore, components: Any) -> None:
    """An unpublishable state is refused by its path at once; not even its good parts are kept."""
    with publishing(store) as publisher:
        publisher.publish({"good": 0}).wait(WAIT)
        store.calls.clear()
        with pytest.raises(EncodeError, match=r"conn|name"):
            publisher.publish(components)
        publisher.flush(WAIT)
        assert store.calls == {}
        reader = Reader(store)
        publisher.publish({}).wait(WAIT)
        snapshot = reader.refresh()
    assert snapshot is not None
    assert dict(snapshot) == {"good": 0}


def test_nothing_to_publish(store: ScriptedStore) -> None:
    """Publishing nothing, with nothing published before, is refused."""
    with publishing(store) as publisher, pytest.raises(SettingsError, match="nothing to publish"):
        publisher.publish({})


def test_close_flushes(store: ScriptedStore) -> None:
    """`close` stores what still waits."""
    publisher = StatePublisher(store, "n")
    with store.paused("put_blobs"):
        publisher.publish(state(1))
        store.wait_for_calls("put_blobs", 1)
        handle = publisher.publish(state(2))
        closing = threading.Thread(target=publisher.close, args=(WAIT,))
        closing.start()
    closing.join(WAIT)
    assert handle.stored == handle.version
    assert not publisher._thread.is_alive()
    publisher.close()
    with pytest.raises(SettingsError, match="closed"):
        publisher.publish(state(3))


def test_a_closed_publisher_is_let_go(store: ScriptedStore) -> None:
    """Nothing keeps a closed publisher and its states in memory, not even the interpreter's end."""
    publisher = StatePublisher(store, "n", heartbeat_s=3600)
    publisher.publish(state(1)).wait(WAIT)
    publisher.close(WAIT)
    left = weakref.ref(publisher)
    del publisher
    gc.collect()
    assert left() is None


def test_flush(store: ScriptedStore) -> None:
    """`flush` waits for all that was published, and returns the newest version."""
    with publishing(store) as publisher:
        assert publisher.flush(0) is None
        with store.paused("put_blobs"):
            publisher.publish(state(1))
            store.wait_for_calls("put_blobs", 1)
            last = publisher.publish(state(2))
        assert publisher.flush(WAIT) == last.version == publisher.last_version


def test_can_not_be_pickled(store: ScriptedStore) -> None:
    """A publisher refuses to travel, with the remedy: two would share one generation: C91."""
    with publishing(store) as publisher, pytest.raises(TypeError, match="where the learner runs"):
        pickle.dumps(publisher)


def test_refuses_after_a_fork(store: ScriptedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a forked child a publisher refuses to work, instead of waiting for a thread: C90."""
    with publishing(store) as publisher:
        with monkeypatch.context() as forked:
            forked.setattr("redis_state_sync.publisher.os.getpid", lambda: -1)
            with pytest.raises(SettingsError, match="another process"):
                publisher.publish(state(1))
            with pytest.raises(SettingsError, match="another process"):
                publisher.flush(WAIT)
            publisher.close()
        publisher.publish(state(1)).wait(WAIT)  # the child's close() closed nothing here


def test_bad_namespace(store: ScriptedStore) -> None:
    """A bad namespace is refused before the store is asked."""
    with pytest.raises(SettingsError, match="namespace"):
        StatePublisher(store, "a b")
    assert store.calls == {}


def test_publishing_from_several_threads(store: ScriptedStore) -> None:
    """Threads that publish parts at once lose none of them."""
    with publishing(store) as publisher:
        threads = [
            threading.Thread(target=lambda i=i: publisher.publish({f"c{i}": i}).wait(WAIT))
            for i in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT)
        snapshot = Reader(store).refresh()
    assert snapshot is not None
    assert dict(snapshot) == {f"c{i}": i for i in range(8)}
