"""The memory that a learner publishes from: handed back by what was dropped, never shared."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from redis_state_sync import SettingsError, StatePublisher
from redis_state_sync.errors import StoreUnavailableError
from redis_state_sync.events import Event, Fetched, Published
from redis_state_sync.fetcher import SMALLEST_SHARED
from redis_state_sync.node_cache import FOLDER_ENV
from redis_state_sync.testing import ScriptedStore
from tests.unit.node_files import files
from tests.unit.node_store import NodeStore
from tests.unit.states import WAIT, Reader, publishing

SIZE = 2 * SMALLEST_SHARED


@pytest.fixture
def store(shared_memory: Path, monkeypatch: pytest.MonkeyPatch) -> ScriptedStore:
    monkeypatch.setenv(FOLDER_ENV, str(shared_memory))
    return ScriptedStore(NodeStore())


def state(number: int) -> dict[str, Any]:
    return {"rl_module/p": {"w": np.full(SIZE, number % 256, np.uint8)}, "number": number}


def check(snapshot: Any) -> int:
    """Its number, if it is whole."""
    number = int(snapshot["number"])
    assert (snapshot["rl_module/p"]["w"] == number % 256).all()
    return number


def test_readers_of_the_learners_node(store: ScriptedStore) -> None:
    """Readers of the learner's node fetch no large component at all, and have the right ones."""
    reader = Reader(store)
    with publishing(store) as publisher:
        for number in range(60):
            publisher.publish(state(number)).wait(WAIT)
            snapshot = reader.refresh()
            assert snapshot is not None
            assert check(snapshot) == number
    assert max(event.bytes_fetched for event in reader.seen(Fetched)) < SMALLEST_SHARED


def test_a_dropped_state_gives_its_memory_back(store: ScriptedStore, shared_memory: Path) -> None:
    """States that wait and are replaced take no more than two states' memory: C1, C71."""
    with publishing(store) as publisher:
        publisher.publish(state(0)).wait(WAIT)
        with store.paused("put_blobs"):
            publisher.publish(state(1))
            store.wait_for_calls("put_blobs", 2)
            for number in range(2, 200):
                last = publisher.publish(state(number))
                # Stored; on its way; the one that waits; the one that it is written to.
                assert len(files(shared_memory)) <= 4
        last.wait(WAIT)
        assert publisher.stats.publishes == 3
        snapshot = Reader(store).refresh()
        assert snapshot is not None
        assert check(snapshot) == 199


def test_an_outage(store: ScriptedStore, shared_memory: Path) -> None:
    """An outage of any length takes no more memory than that, and ends with the latest state."""
    with publishing(store) as publisher:
        publisher.publish(state(0)).wait(WAIT)
        store.go_down(StoreUnavailableError("gone"))
        for number in range(1, 100):
            last = publisher.publish(state(number))
            assert len(files(shared_memory)) <= 4
        store.come_back()
        last.wait(WAIT)
        snapshot = Reader(store).refresh()
        assert snapshot is not None
        assert check(snapshot) == 99


def test_an_observer_publishes(store: ScriptedStore) -> None:
    """What an observer publishes, on the publishing thread, is written to memory of its own."""
    numbers: list[int] = []

    def observer(event: Event) -> None:
        if isinstance(event, Published) and len(numbers) < 20:
            numbers.append(len(numbers) + 1)
            publisher.publish(state(numbers[-1]))

    reader = Reader(store)
    with publishing(store, observers=[observer]) as publisher:
        publisher.publish(state(0)).wait(WAIT)
        held = -1
        while held < 20:
            snapshot = reader.refresh()
            held = held if snapshot is None else check(snapshot)


def test_threads_publish_at_once(store: ScriptedStore) -> None:
    """Threads that publish at once never write to each other's memory."""
    with publishing(store) as publisher:

        def work(thread: int) -> None:
            for number in range(60):
                publisher.publish(state(100 * thread + number))

        threads = [threading.Thread(target=work, args=(thread,)) for thread in range(4)]
        reader = Reader(store)
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            snapshot = reader.refresh()
            if snapshot is not None:
                check(snapshot)
            time.sleep(0.002)  # Else each of many small waits of the others is one for their turn.
        publisher.flush(WAIT)
        snapshot = reader.refresh()
        assert snapshot is None or check(snapshot) % 100 == 59


def test_after_close(store: ScriptedStore) -> None:
    """A closed learner refuses; what its readers have mapped stays as it is."""
    reader = Reader(store)
    with publishing(store) as publisher:
        publisher.publish(state(1)).wait(WAIT)
        snapshot = reader.refresh()
        assert snapshot is not None
        view = snapshot.view("rl_module/p")
    with pytest.raises(SettingsError, match="closed"):
        publisher.publish(state(2))
    with publishing(store) as second:
        for number in range(3, 9):
            second.publish(state(number)).wait(WAIT)
    assert (view["w"] == 1).all()
    assert check(snapshot) == 1


def test_what_waits_at_close(store: ScriptedStore) -> None:
    """What `close` still stores is what was published, and is shared with the node."""
    publisher, reader = StatePublisher(store, "n", heartbeat_s=3600.0), Reader(store)
    publisher.publish(state(4)).wait(WAIT)
    assert reader.refresh() is not None  # It uses the node's cache from now on.
    publisher.publish(state(5))
    publisher.close(WAIT)
    snapshot = reader.refresh()
    assert snapshot is not None
    assert check(snapshot) == 5
    assert max(event.bytes_fetched for event in reader.seen(Fetched)) < SMALLEST_SHARED


def test_a_component_that_does_not_change(store: ScriptedStore) -> None:
    """Weights that did not change keep their memory, their file and their digest: C42."""
    reader = Reader(store)
    with publishing(store) as publisher:
        for number in range(10):
            publisher.publish({**state(7), "number": number}).wait(WAIT)
            assert reader.refresh() is not None
        blob = publisher._latest["rl_module/p"]
        publisher.publish({**state(7), "number": 99}).wait(WAIT)
        assert publisher._latest["rl_module/p"] is blob
    assert [sorted(snapshot.changed) for snapshot in reader.applied[1:]] == [["number"]] * 9
