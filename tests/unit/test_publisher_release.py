"""What a publisher lets go of: when it is closed, dropped, refused, or never came to be."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from redis_state_sync import StalePublisherError, StatePublisher, background, errors
from redis_state_sync.events import Event, Published
from redis_state_sync.memory_store import MemoryStore
from redis_state_sync.publication import Publication
from redis_state_sync.testing import ScriptedStore
from tests.unit.forking import in_child
from tests.unit.states import WAIT, Reader, number_in, publishing, state

DOWN = errors.StoreUnavailableError("connection refused")


class Closed(ScriptedStore):
    """Counts how often it was closed."""

    closed = 0

    def close(self) -> None:
        self.closed += 1
        super().close()


@pytest.fixture
def store() -> Closed:
    return Closed(MemoryStore())


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT
    while not true():
        assert time.monotonic() < deadline
        gc.collect()
        time.sleep(0.01)


def hooks() -> int:
    """How many publishers would be closed at exit."""
    gc.collect()  # those of other tests
    registry: dict[Any, Any] = weakref.finalize._registry  # type: ignore[attr-defined]
    return sum(entry.func is background._close for entry in registry.values())


def test_a_dropped_publisher_ends(store: Closed) -> None:
    """A publisher that nobody refers to leaves no thread, no connection and no exit hook."""
    before = hooks()
    publisher = StatePublisher(store, "n", heartbeat_s=3600)
    publisher.publish(state(1)).wait(WAIT)
    thread, dropped = publisher._thread, weakref.ref(publisher)
    assert hooks() == before + 1
    del publisher
    until(lambda: dropped() is None and not thread.is_alive())
    assert store.closed == 1
    assert hooks() == before


def test_what_a_dropped_publisher_has_to_store_is_stored(store: Closed) -> None:
    """A publisher that is dropped with a state on its way, or waiting, stores it first."""
    with store.paused("put_blobs"):
        publisher = StatePublisher(store, "n", heartbeat_s=3600)
        thread = publisher._thread
        publisher.publish(state(1))
        store.wait_for_calls("put_blobs", 1)
        store.fail_next("append", errors.StoreUnavailableError("connection refused"))
        publisher.publish(state(2))
        del publisher
        gc.collect()
    thread.join(WAIT)
    assert not thread.is_alive()
    snapshot = Reader(store).refresh()
    assert snapshot is not None
    assert number_in(snapshot) == 2


def test_a_handle_is_enough(store: Closed) -> None:
    """Who waits for a state need not keep its publisher."""
    handle = StatePublisher(store, "n").publish(state(1))
    assert handle.wait(WAIT) == handle.version


def test_a_closed_publisher_leaves_no_hook(store: Closed) -> None:
    """`close` ends the thread and takes the exit hook back, twice as well as once."""
    before = hooks()
    publisher = StatePublisher(store, "n")
    publisher.close()
    publisher.close()
    assert not publisher._thread.is_alive()
    assert hooks() == before


def test_a_constructor_that_raises(store: Closed, monkeypatch: pytest.MonkeyPatch) -> None:
    """A publisher that can not take over, or has no thread, leaves connection, thread and hook."""
    before = hooks(), threading.active_count()
    store.fail_next("time_ms", errors.StoreAuthError("wrong password"))
    with pytest.raises(errors.StoreAuthError):
        StatePublisher(store, "n")
    assert store.closed == 1

    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as exhausted:
        exhausted.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(RuntimeError, match="new thread"):
            StatePublisher(store, "n")
    assert store.closed == 2
    assert (hooks(), threading.active_count()) == before


def test_a_call_that_outlives_close(store: Closed) -> None:
    """What `close` can not wait for ends by itself, and closes the connection after it."""
    publisher = StatePublisher(store, "n", heartbeat_s=3600)
    with store.paused("put_blobs"):
        publisher.publish(state(1))
        store.wait_for_calls("put_blobs", 1)
        publisher.close(timeout=0)
        assert publisher._thread.is_alive()
        closed = store.closed
    publisher._thread.join(WAIT)
    assert not publisher._thread.is_alive()
    assert store.closed == closed + 1


def test_an_observer_may_close(store: Closed) -> None:
    """A publisher that is closed by its own observer, on its own thread, ends at once."""
    closed: list[float] = []

    def observer(event: Event) -> None:
        if isinstance(event, Published):
            started = time.monotonic()
            publisher.close(timeout=3600)
            closed.append(time.monotonic() - started)

    publisher = StatePublisher(store, "n", observers=[observer])
    publisher.publish(state(1)).wait(WAIT)
    publisher._thread.join(WAIT)
    assert not publisher._thread.is_alive()
    assert len(closed) == 1


def test_handles_that_nobody_keeps(store: Closed) -> None:
    """An outage of any length keeps no handle that its caller dropped, and serves all others."""
    with publishing(store) as publisher:
        store.go_down(DOWN)
        first = publisher.publish(state(0))
        dropped = [weakref.ref(publisher.publish(state(number))) for number in range(100)]
        last = publisher.publish(state(100))
        until(lambda: publisher.stats.failures.get("network", 0) > 1)
        assert all(handle() is None for handle in dropped)
        store.come_back()
        assert first.wait(WAIT) == last.wait(WAIT) == last.version


def depth(error: BaseException) -> int:
    """How many frames an error refers to."""
    link, count = error.__traceback__, 0
    while link is not None:
        link, count = link.tb_next, count + 1
    return count


def test_a_refusal_does_not_grow(store: Closed) -> None:
    """A refused learner that goes on trying gets errors that hold one call's frames each: C34."""
    with publishing(store, heartbeat_s=0.01) as older, publishing(store):
        older._thread.join(WAIT)
        freed: list[weakref.ref[Any]] = []
        depths = set()
        for _ in range(5):
            data = np.zeros(10)
            freed.append(weakref.ref(data))
            with pytest.raises(StalePublisherError) as caught:
                older.publish({"c": data})
            depths.add(depth(caught.value))
            with pytest.raises(StalePublisherError):
                older.flush(WAIT)
        del data
        gc.collect()
        assert len(depths) == 1
        # What the last call got may stay with the error, but not what all before it got.
        assert [ref() for ref in freed[:-1]] == [None] * 4


def test_a_failure_does_not_grow(store: Closed) -> None:
    """Asking for a failed version again and again gets an error that stays as it is."""
    handle = Publication(Reader(store).subscriber.held, threading.Condition(), lambda: None)  # type: ignore[arg-type]
    handle.fail(DOWN)
    depths = set()
    for _ in range(5):
        with pytest.raises(errors.StoreUnavailableError) as caught:
            handle.wait(WAIT, fail_fast=True)
        depths.add(depth(caught.value))
    assert len(depths) == 1


# Forking with threads is what is under test.
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_while_the_thread_holds_the_lock(store: Closed) -> None:
    """A child forked at any moment can close what it inherited, and is told so by the rest: C90."""
    with publishing(store) as publisher:
        handle = publisher.publish(state(1))
        handle.wait(WAIT)

        def child() -> None:
            publisher.close()
            for call in (lambda: handle.wait(WAIT), lambda: publisher.publish(state(2))):
                with pytest.raises(errors.SettingsError, match="another process"):
                    call()

        held, done = threading.Event(), threading.Event()

        def hold() -> None:
            with publisher._changed:
                held.set()
                done.wait(WAIT)

        thread = threading.Thread(target=hold)
        thread.start()
        assert held.wait(WAIT)
        try:
            assert in_child(child) == 0
        finally:
            done.set()
            thread.join(WAIT)
        publisher.publish(state(2)).wait(WAIT)


def test_publishing_without_a_pause_keeps_what_is_pinned() -> None:
    """However closely publishes follow each other, what is pinned does not expire: C104."""
    now = 1000.0
    store = MemoryStore(clock=lambda: now)
    with publishing(store, heartbeat_s=0.02, history=1, ttl_s=10.0) as publisher:
        pinned = publisher.publish(state(0)).wait(WAIT)
        store.set_pin(publisher.keys, "best", pinned, timeout=1)
        for number in range(1, 30):
            # The next one is there before the thread could come to rest.
            handle = publisher.publish(state(number))
            time.sleep(0.01)
            handle.wait(WAIT)
            now += 1.0
        publisher.flush(WAIT)
        manifest = Reader(store).subscriber._records.open(
            next(e for e in store.newest(publisher.keys, count=9, timeout=1) if e.version == pinned)
        )
        assert None not in store.get_blobs(publisher.keys, list(manifest.digests()), timeout=1)
