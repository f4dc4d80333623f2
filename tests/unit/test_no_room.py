"""A process at its limit of descriptors or memory goes on with what it has, and says so."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from redis_state_sync import ApplyError, Snapshot
from redis_state_sync.events import Failed, Fetched
from redis_state_sync.fetcher import SMALLEST_SHARED
from redis_state_sync.node_cache import FOLDER_ENV
from tests.unit.forking import in_child
from tests.unit.node_files import files, opened
from tests.unit.node_store import NodeStore
from tests.unit.states import WAIT, Reader, publishing

SIZE = 4 * SMALLEST_SHARED


@pytest.fixture(autouse=True)
def _folder(shared_memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_ENV, str(shared_memory))


def state(number: int, size: int = SIZE) -> dict[str, Any]:
    return {f"rl_module/{name}": {"w": np.full(size, number, np.uint8)} for name in "pq"}


def number_in(snapshot: Snapshot) -> set[int]:
    return {int(snapshot[name]["w"][0]) for name in snapshot}


@contextmanager
def limited(what: int, room: int) -> Iterator[None]:
    """This much more than the process has now, and no more."""
    before = resource.getrlimit(what)
    resource.setrlimit(what, (used(what) + room, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(what, before)


def used(what: int) -> int:
    if what == resource.RLIMIT_AS:
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    free = os.dup(0)  # A limit is on numbers, not on how many are open.
    os.close(free)
    return free


class Receiver:
    """Has what was applied last, whole."""

    def __init__(self) -> None:
        self.holds: dict[str, Any] = {}
        self.number = 0

    def apply(self, snapshot: Snapshot) -> None:
        holds = {name: snapshot[name] for name in snapshot}
        (self.number,) = {int(tree["w"].mean()) for tree in holds.values()}
        self.holds = holds


@pytest.mark.parametrize("left", range(6))
def test_no_descriptor_left(left: int) -> None:
    """However few descriptors there are, `refresh` returns, and later versions arrive."""

    def child() -> None:
        store = NodeStore()
        reader, receiver = Reader(store), Receiver()
        with publishing(store) as publisher:
            publisher.publish(state(1)).wait(WAIT)
            assert reader.subscriber.refresh(receiver.apply) is not None
            publisher.publish(state(2)).wait(WAIT)
            with limited(resource.RLIMIT_NOFILE, left):
                reader.clock.now += 10
                done = reader.subscriber.refresh(receiver.apply)
            seen = reader.seen(Failed)
            assert (done is None) == bool(seen), seen
            assert receiver.number == (1 if done is None else 2)
            if done is None:
                assert {(event.operation, event.category) for event in seen} == {("apply", "apply")}
                assert "ulimit -n" in seen[0].message
            publisher.publish(state(3)).wait(WAIT)
            reader.clock.now += 10
            assert reader.subscriber.refresh(receiver.apply) is not None
            assert receiver.number == 3

    assert in_child(child) == 0


def test_no_descriptor_left_to_map() -> None:
    """What can not be mapped in the middle of applying is an `ApplyError`; nothing is applied."""

    def child() -> None:
        store = NodeStore()
        reader, receiver = Reader(store), Receiver()
        with publishing(store) as publisher:
            publisher.publish(state(1)).wait(WAIT)
            snapshot = reader.subscriber.fetch()
            assert snapshot is not None
            with limited(resource.RLIMIT_NOFILE, 1):
                with pytest.raises(ApplyError, match=r"no room for 'rl_module/q'.*ulimit -n"):
                    receiver.apply(snapshot)
                assert receiver.holds == {}
            receiver.apply(snapshot)
            assert receiver.number == 1

    assert in_child(child) == 0


def test_a_learner_without_descriptors() -> None:
    """A learner that has none left publishes all the same, and shares again when it can."""

    def child() -> None:
        store = NodeStore()
        reader = Reader(store)
        with publishing(store) as publisher:
            publisher.publish(state(1)).wait(WAIT)
            with limited(resource.RLIMIT_NOFILE, 0):
                for number in (2, 3, 4):
                    publisher.publish(state(number)).wait(WAIT)
            assert publisher.stats.failures == {}
            for number in (5, 6):
                publisher.publish(state(number)).wait(WAIT)
            snapshot = reader.refresh()
            assert snapshot is not None
            assert number_in(snapshot) == {6}
            assert [event.bytes_fetched for event in reader.seen(Fetched)] == [0]

    assert in_child(child) == 0


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 1.0, 1.5])
@pytest.mark.parametrize("cached", [True, False], ids=["cache", "no cache"])
def test_no_memory_left(share: float, cached: bool) -> None:
    """Under a limit of memory `refresh` returns, counts it, and applies again when it may."""
    size = 64 << 20  # More than an allocator keeps for itself.

    def child() -> None:
        store = NodeStore()
        reader = Reader(store, **({} if cached else {"node_cache_bytes": 0}))
        receiver = Receiver()
        with publishing(store) as publisher:
            publisher.publish(state(1, size)).wait(WAIT)
            with limited(resource.RLIMIT_AS, int(2 * share * size)):
                done = reader.subscriber.refresh(receiver.apply)
            seen = reader.seen(Failed)
            assert (done is None) == bool(seen), seen
            assert all("memory" in event.message for event in seen)
            assert {event.category for event in seen} <= {"apply", "codec"}
            publisher.publish(state(2, size)).wait(WAIT)
            reader.clock.now += 10
            assert reader.subscriber.refresh(receiver.apply) is not None
            assert receiver.number == 2

    assert in_child(child) == 0


def test_a_slot_that_can_not_be_committed(
    shared_memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a descriptor for its lease a slot stays one: it can be committed later."""
    cache = opened(shared_memory)
    slot = cache.slot("a", SIZE)
    assert slot is not None
    dup: Callable[[int], int] = os.dup

    def none_left(fd: int) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "dup", none_left)
    assert slot.commit() is None
    assert files(shared_memory) == ["a.part"]
    monkeypatch.setattr(os, "dup", dup)
    assert slot.commit() is not None
    assert cache.find("a", SIZE)
