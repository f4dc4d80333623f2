"""What observers may do from where they are called, and what a reader's own code may."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from redis_state_sync import SettingsError, Snapshot, StatePublisher, StoreError, Version
from redis_state_sync.events import Event, Failed, Published
from redis_state_sync.memory_store import MemoryStore
from redis_state_sync.testing import ScriptedStore
from tests.unit.states import WAIT, Reader, number_in, publishing, state


def observed(act: Callable[[StatePublisher], Any]) -> tuple[list[Any], StatePublisher]:
    """What an observer gets that acts at the first version, and its publisher."""
    got: list[Any] = []
    done = threading.Event()

    def observer(event: Event) -> None:
        if isinstance(event, Published) and not done.is_set():
            try:
                got.append(act(publisher))
            except Exception as error:
                got.append(error)
            done.set()

    publisher = StatePublisher(MemoryStore(), "n", heartbeat_s=3600.0, observers=[observer])
    publisher.publish(state(1))
    assert done.wait(WAIT)
    return got, publisher


@pytest.mark.parametrize(
    "wait",
    [lambda p: p.publish(state(2)).wait(3600), lambda p: p.flush(3600)],
    ids=["wait", "flush"],
)
def test_an_observer_can_not_wait(wait: Callable[[StatePublisher], Any]) -> None:
    """An observer that waits for a version is told that it would wait for itself."""
    (error,), publisher = observed(wait)
    assert isinstance(error, SettingsError)
    assert "would wait for itself" in str(error)
    publisher.close()


def test_an_observer_of_the_clean_up_can_not_wait() -> None:
    """The same while old versions are dropped, when no version is on its way."""
    store = ScriptedStore(MemoryStore())
    got: list[Exception] = []

    def observer(event: Event) -> None:
        if isinstance(event, Failed):
            with pytest.raises(SettingsError, match="would wait for itself") as caught:
                publisher.flush(3600)
            got.append(caught.value)

    with publishing(store, history=1, observers=[observer]) as publisher:
        store.fail_next("pins", StoreError("no"))
        publisher.publish(state(1)).wait(WAIT)
        publisher.flush(WAIT)
    assert len(got) == 1


def test_an_observer_publishes() -> None:
    """What an observer publishes is stored like anything else."""
    (handle,), publisher = observed(lambda p: p.publish(state(2)))
    assert handle.wait(WAIT) == Version(publisher.generation, 2)
    publisher.close()


def test_an_observer_closes() -> None:
    """An observer may end its publisher: the thread ends after it."""
    got, publisher = observed(lambda p: p.close(3600))
    assert got == [None]
    publisher._thread.join(WAIT)
    assert not publisher._thread.is_alive()


def test_refresh_within_apply() -> None:
    """A refresh from within `apply` does nothing: a newer version is not overwritten by ours."""
    store = MemoryStore()
    reader = Reader(store)
    numbers: list[int] = []
    inner: list[Any] = []

    def apply(snapshot: Snapshot) -> None:
        publisher.publish(state(2)).wait(WAIT)
        inner.append(reader.subscriber.refresh(lambda s: numbers.append(number_in(s))))
        numbers.append(number_in(snapshot))

    with publishing(store) as publisher:
        publisher.publish(state(1)).wait(WAIT)
        reader.subscriber.refresh(apply)
        assert inner == [None]
        assert reader.subscriber.held == Version(publisher.generation, 1)
        reader.subscriber.refresh(lambda s: numbers.append(number_in(s)))
    assert numbers == [1, 2]


def test_refresh_after_an_apply_that_raised() -> None:
    """An `apply` that raised does not keep the subscriber from refreshing."""
    store = MemoryStore()
    reader = Reader(store)

    def broken(_: Snapshot) -> None:
        raise ZeroDivisionError

    with publishing(store) as publisher:
        publisher.publish(state(1)).wait(WAIT)
        with pytest.raises(ZeroDivisionError):
            reader.subscriber.refresh(broken)
        publisher.publish(state(2)).wait(WAIT)
        assert reader.refresh() is not None


def test_refresh_in_a_signal_handler() -> None:
    """A handler that interrupts a refresh and refreshes returns at once, with nothing applied."""
    store = MemoryStore()
    reader = Reader(store)
    inner: list[Any] = []

    def handler(*_: object) -> None:
        inner.append(reader.subscriber.refresh(reader.applied.append))

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with publishing(store) as publisher:
            publisher.publish(state(1)).wait(WAIT)
            reader.subscriber.refresh(lambda _: signal.raise_signal(signal.SIGUSR1))
            assert inner == [None]
            assert reader.applied == []
            signal.raise_signal(signal.SIGUSR1)  # Nothing is interrupted: it polls.
            publisher.publish(state(2)).wait(WAIT)
            signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert [number_in(snapshot) for snapshot in reader.applied] == [2]
