"""Publisher and subscriber over every store."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from redis_state_sync import (
    Keyring,
    Snapshot,
    StalePublisherError,
    StaleStateError,
    StatePublisher,
    StateSubscriber,
    Version,
)
from redis_state_sync.keys import Keys
from redis_state_sync.manifest import Manifest
from redis_state_sync.memory_store import MemoryStore
from redis_state_sync.store import Store
from redis_state_sync.testing import ScriptedStore
from tests.contract.conftest import WAIT, Backend, matching, run
from tests.contract.servers import until


def state(number: int) -> dict[str, Any]:
    return {
        "rl_module/p": {"w": np.full(500, number, np.float32)},
        "rl_module/frozen": {"w": np.arange(100.0)},
        "counters": {"steps": number},
    }


def number_in(snapshot: Snapshot) -> int:
    weights, steps = snapshot["rl_module/p"]["w"], snapshot["counters"]["steps"]
    assert (weights == steps).all()
    return int(steps)


def test_round_trip(backend: Backend, keys: Keys) -> None:
    """What was published is what a reader gets, on real and fake servers: C2, C22, C110."""
    publisher = StatePublisher(backend.open(), keys.namespace)
    subscriber = StateSubscriber(backend.open(), keys.namespace)
    version = publisher.publish(state(3), weights_seq_no=12).wait(WAIT)
    snapshot = subscriber.fetch(timeout=WAIT)
    assert snapshot is not None
    assert (snapshot.version, snapshot.weights_seq_no) == (version, 12)
    assert number_in(snapshot) == 3
    assert (snapshot["rl_module/frozen"]["w"] == np.arange(100.0)).all()
    publisher.close()


def test_readers_that_need_not_ask(backend: Backend, keys: Keys) -> None:
    """Where reads can be tracked and where not, such a reader gets each version: C2, C110."""
    publisher = StatePublisher(backend.open(), keys.namespace, heartbeat_s=3600.0)
    # A clock that stands still: the reader looks at the top once, and then never by itself.
    subscriber = StateSubscriber(
        backend.open(), keys.namespace, tracking=True, poll_timeout_s=WAIT, clock=lambda: 1000.0
    )
    for number in range(1, 9):
        version = publisher.publish(state(number)).wait(WAIT)
        until(lambda: subscriber.refresh(lambda s: None) is not None, "the next version")
        assert subscriber.held == version
        for _ in range(number % 4):
            assert subscriber.refresh(lambda s: None) is None
    can_track = backend.name in ("valkey-tcp-resp3", "valkey-unix-resp3", "debian-redis-tls-resp3")
    assert (subscriber.store.mark() is not None) == can_track
    publisher.close()


def test_readers_never_see_a_mixture(backend: Backend, keys: Keys) -> None:
    """Whatever state a looping reader applies is whole and its version's: C9, C10, C16, C27."""
    publisher = StatePublisher(backend.open(), keys.namespace, history=1)
    expected: dict[int, int] = {}
    applied: list[tuple[Version, int]] = []
    problems: list[BaseException] = []
    done = threading.Event()
    subscriber = StateSubscriber(
        backend.open(), keys.namespace, poll_timeout_s=WAIT, transfer_timeout_s=WAIT
    )

    def read() -> None:
        try:
            while True:
                last = done.is_set()
                subscriber.refresh(lambda s: applied.append((s.version, number_in(s))))
                if last:
                    return
        except BaseException as error:
            problems.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(1, backend.versions + 1):
        handle = publisher.publish(state(number))
        expected[handle.version.number] = number
        if number % 3 == 0:
            handle.wait(WAIT)
    for number in range(backend.versions + 1, backend.versions + 5):
        # A reader that was always late so far, on a slow machine, gets some versions as well.
        handle = publisher.publish(state(number))
        expected[handle.version.number] = number
        handle.wait(WAIT)
        until(lambda v=handle.version: subscriber.held == v, "a version that is left alone")
    final = publisher.flush(WAIT)
    subscriber._arrivals.cooldown = type(subscriber._arrivals.cooldown)()
    done.set()
    reader.join(WAIT)
    publisher.close()
    assert problems == []
    for version, number in applied:
        # What the heartbeat publishes again holds what the version before it held.
        assert number == expected[max(n for n in expected if n <= version.number)]
    versions = [version for version, _ in applied]
    assert versions == sorted(set(versions))
    assert final is not None
    assert versions[-1] >= final
    assert len(versions) > 3


def test_the_number_of_keys_is_constant(backend: Backend, keys: Keys) -> None:
    """The number of keys does not grow with that of versions, and all expire: C66, C67."""
    publisher = StatePublisher(backend.open(), keys.namespace, history=3)
    subscriber = StateSubscriber(backend.open(), keys.namespace, poll_timeout_s=WAIT)
    counts = []
    for number in range(1, max(8, backend.versions // 8)):
        publisher.publish(state(number)).wait(WAIT)
        subscriber.refresh(lambda s: None)
        publisher.flush(WAIT)  # What it pushed out is dropped.
        if number >= 5:
            counts.append(len(backend.expiries(keys)))
    # versions, readers, the frozen module, and two blobs for each of three versions
    assert set(counts) == {2 + 1 + 3 * 2}
    assert all(seconds > 0 for seconds in backend.expiries(keys).values())
    publisher.close()


def everything(store: Store, keys: Keys) -> dict[bytes, Any]:
    """The keys outside of a namespace, with their contents."""
    names = matching(store, "*")
    own = f"rss:{{{keys.namespace}}}:".encode()
    return {n: run(store, ("DUMP", n))[0] for n in names if not n.startswith(own)}


@pytest.mark.not_for("memory")  # Nobody else can write to it.
@pytest.mark.parametrize("fields", [("foo", "bar"), ("manifest", "x", "more", "y"), ("f", "")])
def test_someone_elses_entries_are_looked_past(
    backend: Backend, keys: Keys, fields: tuple[str, ...]
) -> None:
    """An entry that no learner made keeps no reader from older versions, no learner from newer."""
    publisher = StatePublisher(backend.open(), keys.namespace, heartbeat_s=3600)
    first = publisher.publish(state(1)).wait(WAIT)
    run(backend.open(), ("XADD", keys.versions, f"{first.generation + 5}-7", *fields))
    subscriber = StateSubscriber(backend.open(), keys.namespace, poll_timeout_s=WAIT)
    snapshot = subscriber.refresh(lambda s: None)
    assert snapshot is not None
    assert snapshot.version == first
    with pytest.raises(StalePublisherError, match="unreadable record"):
        publisher.publish(state(2)).wait(WAIT)
    publisher.close()
    publisher = StatePublisher(backend.open(), keys.namespace, heartbeat_s=3600)
    version = publisher.publish(state(3)).wait(WAIT)
    assert subscriber.wait_for(lambda s: None, timeout=WAIT, version=version) == version
    publisher.close()


@pytest.mark.not_for("memory")  # It holds no keys of others.
def test_foreign_keys_are_untouched(backend: Backend, keys: Keys) -> None:
    """Publishing, dropping, taking over and closing leave every other key as it is: C102."""
    store = backend.open()
    namespace = keys.namespace
    for command in (
        ("SET", "foreign", "1"),
        ("SET", f"rss:{{{namespace}}}", "2"),
        ("SET", f"rss:{{{namespace}0}}:versions", "3"),
        ("HSET", f"rss:{namespace}:pins", "a", "1-1"),
        ("XADD", f"{namespace}:versions", "1-1", "a", "b"),
    ):
        run(store, command)  # Each in a slot of its own.
    before = everything(store, keys)
    assert len(before) >= 5
    for round_ in range(2):
        publisher = StatePublisher(backend.open(), namespace, history=1)
        for number in range(4):
            publisher.publish({"c": (round_, number)}).wait(WAIT)
        publisher.close()
        StateSubscriber(backend.open(), namespace, poll_timeout_s=WAIT).refresh(lambda s: None)
    assert everything(store, keys) == before
    for name in before:
        run(store, ("DEL", name))


def test_take_over(backend: Backend, keys: Keys) -> None:
    """A later learner takes over, the earlier one is fenced, readers follow: C34, C100."""
    old = StatePublisher(backend.open(), keys.namespace, writer_id="old", heartbeat_s=3600)
    subscriber = StateSubscriber(backend.open(), keys.namespace, poll_timeout_s=WAIT)
    mine = StateSubscriber(backend.open(), keys.namespace, writer="old", poll_timeout_s=WAIT)
    old.publish(state(1)).wait(WAIT)
    seen: list[int] = []
    subscriber.refresh(lambda s: seen.append(number_in(s)))
    mine.refresh(lambda s: None)
    new = StatePublisher(backend.open(), keys.namespace, writer_id="the-new-one")
    assert new.generation > old.generation
    with pytest.raises(StalePublisherError, match="the-new-one"):
        old.publish(state(2)).wait(WAIT)
    subscriber.refresh(lambda s: seen.append(number_in(s)))
    new.publish(state(3)).wait(WAIT)
    subscriber.refresh(lambda s: seen.append(number_in(s)))
    assert mine.refresh(lambda s: None) is None
    assert seen == [1, 3]
    assert subscriber.held == new.last_version
    assert mine.held == Version(old.generation, 1)
    for publisher in (old, new):
        publisher.close()


# One store of each kind: what happens does not depend on how one connects.
OTHER_WAYS = ("fakeredis-resp3", "fake-tcp", "valkey-tcp", "valkey-unix-resp3", "debian-redis-tls",
              "valkey-cluster-resp3")  # fmt: skip


@pytest.mark.not_for(*OTHER_WAYS)
@pytest.mark.parametrize("operation", ["refresh", "put_blobs", "append"])
def test_a_namespace_deleted_in_the_middle(backend: Backend, keys: Keys, operation: str) -> None:
    """Deleted while a version is on its way, it ends up whole, and with an expiry: C30."""
    scripted = ScriptedStore(backend.open())
    publisher = StatePublisher(scripted, keys.namespace, heartbeat_s=0.05)
    publisher.publish(state(1)).wait(WAIT)
    with scripted.paused(operation):
        calls = scripted.calls[operation]
        publisher.publish(state(2))
        scripted.wait_for_calls(operation, calls + 1)
        delete(backend, keys)
    publisher.flush(WAIT)
    reader = StateSubscriber(backend.open(), keys.namespace, poll_timeout_s=WAIT)
    got: list[Snapshot] = []
    reader.wait_for(got.append, timeout=WAIT)
    assert number_in(got[-1]) == 2
    assert all(seconds > 0 for seconds in backend.expiries(keys).values())
    publisher.close()


def delete(backend: Backend, keys: Keys) -> None:
    """What an operator does who thinks that the run is over."""
    store = backend.open()
    if isinstance(store, MemoryStore):
        for name in backend.expiries(keys):
            store._values.pop(name)
    else:
        run(store, ("DEL", *backend.expiries(keys)))


@pytest.mark.not_for(*OTHER_WAYS)
def test_pinned_versions_stay(backend: Backend, keys: Keys) -> None:
    """A pinned version can be read, whole, until it is unpinned, whatever came after it: C104."""
    store = backend.open()
    publisher = StatePublisher(backend.open(), keys.namespace, history=2)
    pinned = publisher.publish(state(1)).wait(WAIT)
    publisher.flush(WAIT)
    set_pin(store, keys, pinned)
    for number in range(2, 9):
        publisher.publish(state(number)).wait(WAIT)
    publisher.flush(WAIT)
    entries = {e.version: e.manifest for e in store.newest(keys, count=99, timeout=WAIT)}
    assert sorted(v.number for v in entries) == [1, 7, 8]
    digests = list(Manifest.decode(entries[pinned]).digests())
    assert None not in store.get_blobs(keys, digests, timeout=WAIT)
    set_pin(store, keys, None)
    publisher.publish(state(9)).wait(WAIT)
    publisher.flush(WAIT)
    assert [e.version.number for e in store.newest(keys, count=99, timeout=WAIT)] == [9, 8]
    assert None in store.get_blobs(keys, digests, timeout=WAIT)
    publisher.close()


def set_pin(store: Store, keys: Keys, version: Version | None) -> None:
    if isinstance(store, MemoryStore):
        store._set(keys.pins, {} if version is None else {"best": version}, 100)
    elif version is None:
        run(store, ("HDEL", keys.pins, "best"))
    else:
        run(store, ("HSET", keys.pins, "best", str(version)))


def test_a_wiped_namespace_is_filled_again(backend: Backend, keys: Keys) -> None:
    """A namespace that lost everything is filled by the heartbeat, under a greater version: C63."""
    publisher = StatePublisher(backend.open(), keys.namespace, heartbeat_s=0.05)
    subscriber = StateSubscriber(backend.open(), keys.namespace, poll_timeout_s=WAIT)
    first = publisher.publish(state(5)).wait(WAIT)
    subscriber.refresh(lambda s: None)
    delete(backend, keys)
    later = Version(first.generation, first.number + 1)
    assert subscriber.wait_for(lambda s: None, version=later, timeout=WAIT) == later
    snapshot = StateSubscriber(backend.open(), keys.namespace).fetch(timeout=WAIT)
    assert snapshot is not None
    assert number_in(snapshot) == 5
    publisher.close()


@pytest.mark.parametrize("harm", ["damaged", "gone"])
def test_a_bad_blob_heals(backend: Backend, keys: Keys, harm: str) -> None:
    """A blob that a reader can not use is sent again, though its component never changes: C59, C63.

    A blob that is there counts as good for the learner until a reader asks for it again.
    """
    publisher = StatePublisher(backend.open(), keys.namespace, heartbeat_s=0.05)
    first = publisher.publish(state(1)).wait(WAIT)
    vandal = backend.open()
    (entry,) = vandal.newest(keys, timeout=WAIT)
    frozen = Manifest.decode(entry.manifest).components["rl_module/frozen"].pieces[0]
    if harm == "damaged":
        vandal.put_blobs(keys, {frozen.digest: bytes(frozen.size)}, ttl_s=99, timeout=WAIT)
    else:
        vandal.drop(keys, [], [frozen.digest], timeout=WAIT)
    subscriber = StateSubscriber(
        backend.open(), keys.namespace, poll_timeout_s=WAIT, transfer_timeout_s=WAIT
    )
    found: list[Snapshot] = []
    assert subscriber.wait_for(found.append, timeout=WAIT) >= first
    assert number_in(found[-1]) == 1
    assert (found[-1]["rl_module/frozen"]["w"] == np.arange(100.0)).all()
    # The request is closed: nothing is sent again and again.
    publisher.flush(WAIT)
    assert vandal.refresh(keys, [], ttl_s=99, timeout=WAIT) == set()
    publisher.close()


def test_versions_that_can_not_be_fetched(backend: Backend, keys: Keys) -> None:
    """A version whose blob is gone counts as one that a reader is behind, until a whole one comes.

    One that waits does so until then.
    """
    publisher = StatePublisher(backend.open(), keys.namespace, heartbeat_s=3600.0)
    readers = [
        StateSubscriber(
            backend.open(),
            keys.namespace,
            poll_timeout_s=WAIT,
            node_cache_bytes=0,
            max_staleness_versions=0,
            on_stale=what,  # type: ignore[arg-type]
            stale_wait_s=WAIT,
        )
        for what in ("raise", "wait")
    ]
    raises, waits = readers
    publisher.publish(state(1)).wait(WAIT)
    for reader in readers:
        assert reader.refresh(lambda _: None) is not None
    publisher.publish(state(2)).wait(WAIT)
    (entry,) = publisher.store.newest(keys, timeout=WAIT)
    publisher.store.drop(keys, [], list(Manifest.decode(entry.manifest).digests()), timeout=WAIT)
    with pytest.raises(StaleStateError, match="1 versions behind"):
        raises.refresh(lambda _: None)
    later = threading.Timer(0.3, publisher.publish, [state(3)])
    later.start()
    snapshot = waits.refresh(lambda _: None)
    later.join()
    assert snapshot is not None
    assert number_in(snapshot) == 3
    time.sleep(0.2)  # The one that raised leaves the store alone for a moment.
    assert raises.refresh(lambda _: None) is not None
    publisher.close()


def test_signed_round_trip(backend: Backend, keys: Keys) -> None:
    """Signed states arrive over every store, and what someone else writes does not."""
    keyring = Keyring(lambda: "k" * 32)
    subscriber = StateSubscriber(
        backend.open(), keys.namespace, keyring=keyring, poll_timeout_s=WAIT
    )
    publisher = StatePublisher(backend.open(), keys.namespace, keyring=keyring, heartbeat_s=3600.0)
    with closing(publisher):
        version = publisher.publish(state(7)).wait(WAIT)
        with closing(StatePublisher(backend.open(), keys.namespace)) as forger:
            forged = forger.publish(state(666)).wait(WAIT)
            found: list[Snapshot] = []
            subscriber.refresh(found.append)
            assert [(s.version, number_in(s)) for s in found] == [(version, 7)]
            last = publisher.publish(state(8)).wait(WAIT)
            assert last > forged
            assert subscriber.wait_for(found.append, version=last, timeout=WAIT) == last
            assert number_in(found[-1]) == 8


def test_prefetching_under_load(backend: Backend, keys: Keys) -> None:
    """A reader whose thread fetches while versions come fast: it applies each once, in order and
    unmixed, between its steps or at its refreshes, and ends with the newest, whole.
    """
    applied: list[tuple[Version, int]] = []
    counters: list[Version] = []
    with closing(StatePublisher(backend.open(), keys.namespace)) as publisher:
        subscriber = StateSubscriber(
            backend.open(), keys.namespace, poll_timeout_s=WAIT, prefetch_every_s=0.0005
        )
        stop = threading.Event()

        def publish() -> None:
            for number in range(backend.versions // 3):
                publisher.publish(state(number)).wait(WAIT)
            stop.set()

        def whole(snapshot: Snapshot) -> None:
            if applied and applied[-1][0] == snapshot.version:
                counters.append(snapshot.version)  # The rest of it.
                assert not any(name.startswith("rl_module/") for name in snapshot.changed)
            else:
                applied.append((snapshot.version, number_in(snapshot)))

        in_flight = 0

        def between_steps() -> bool:
            nonlocal in_flight
            found = subscriber.refresh_in_flight(
                lambda s: applied.append((s.version, number_in(s)))
            )
            in_flight += found is not None
            return found is not None

        thread = threading.Thread(target=publish)
        thread.start()
        while not stop.is_set():
            subscriber.refresh(whole)
            with subscriber.prefetching():
                for _ in range(20):
                    time.sleep(0.0005)
                    between_steps()
        thread.join(WAIT)
        subscriber.refresh(whole)
        with subscriber.prefetching():
            publisher.publish(state(publisher.last_version.number)).wait(WAIT)
            until(between_steps, "a version in flight")
        subscriber.refresh(whole)
        assert counters[-1] == subscriber.held == publisher.last_version
        subscriber.close()
    versions = [version for version, _ in applied]
    assert versions == sorted(set(versions))
    assert all(version.number == number + 1 for version, number in applied)
    assert in_flight > 0
    assert len(set(counters)) == len(counters) <= in_flight
