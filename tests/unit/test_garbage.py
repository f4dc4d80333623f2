"""Nothing waits for the garbage collector: states are large, and it does not know how large.

An error holds the frames that it went through, and these what was sent or received. If one of them
holds the error, in turn, only a collection frees it all, and in a program that makes little garbage
there may be none for minutes.
"""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from redis_state_sync import (
    ApplyError,
    PublishTimeoutError,
    Snapshot,
    StatePublisher,
    StoreError,
    open_store,
)
from redis_state_sync.errors import EncodeError, StoreFullError, StoreTimeoutError
from redis_state_sync.testing import ScriptedStore
from tests.unit.states import WAIT, Reader, publishing

TIMES = 5


class Scene:
    """A learner, a reader, and what may happen to them."""

    def __init__(self, store: ScriptedStore, publisher: StatePublisher) -> None:
        self.store = store
        self.publisher = publisher
        self.reader = Reader(store)
        self.number = 0

    def publish(self) -> None:
        self.number += 1
        self.publisher.publish({"c": np.full(10, self.number)}).wait(WAIT)

    def read(self) -> None:
        self.publish()
        self.reader.refresh()
        self.reader.applied.clear()

    def a_publish_fails(self, error: type[StoreError] = StoreTimeoutError) -> None:
        self.store.fail_next("put_blobs", error("as told"))
        self.number += 1
        handle = self.publisher.publish({"c": np.full(10, self.number)})
        try:
            handle.wait(WAIT, fail_fast=True)
        except StoreError:
            pass
        handle.wait(WAIT)

    def the_store_is_full(self) -> None:
        self.a_publish_fails(StoreFullError)

    def a_wait_is_too_short(self) -> None:
        with self.store.paused("put_blobs"):
            handle = self.publisher.publish({"c": self.number})
            self.number += 1
            try:
                handle.wait(0)
            except PublishTimeoutError:
                pass
        handle.wait(WAIT)

    def a_value_can_not_be_published(self) -> None:
        try:
            self.publisher.publish({"c": {1, 2}})
        except EncodeError:
            pass

    def a_state_is_rejected(self) -> None:
        def apply(snapshot: Snapshot) -> None:
            raise ApplyError(f"{snapshot['c']}")

        self.publish()
        self.reader.clock.now += 10
        self.reader.subscriber.refresh(apply)

    def the_readers_own_code_raises(self) -> None:
        def apply(snapshot: Snapshot) -> None:
            raise ZeroDivisionError(f"{snapshot['c']}")

        self.publish()
        self.reader.clock.now += 10
        try:
            self.reader.subscriber.refresh(apply)
        except ZeroDivisionError:
            pass

    def newest_digest(self) -> str:
        newest = self.store.newest(self.publisher.keys, timeout=WAIT)[0]
        return next(iter(self.reader.subscriber._records.open(newest).digests()))

    def a_blob_is_damaged(self) -> None:
        self.publish()
        self.store.corrupt(self.newest_digest())
        self.reader.refresh()

    def a_blob_is_missing(self) -> None:
        self.publish()
        self.store.lose_blob(self.newest_digest())
        self.reader.refresh()

    def a_poll_fails(self) -> None:
        self.store.fail_next("newest", StoreTimeoutError("no answer"))
        self.reader.refresh()


PATHS = [
    Scene.publish,
    Scene.read,
    Scene.a_publish_fails,
    Scene.the_store_is_full,
    Scene.a_wait_is_too_short,
    Scene.a_value_can_not_be_published,
    Scene.a_state_is_rejected,
    Scene.the_readers_own_code_raises,
    Scene.a_blob_is_damaged,
    Scene.a_blob_is_missing,
    Scene.a_poll_fails,
]


@pytest.mark.parametrize(
    "url",
    [
        "redis://127.0.0.1:1",
        "rediss://127.0.0.1:1",
        "unix:///run/nowhere.sock",
        "redis+sentinel://127.0.0.1:1/mymaster",
        "redis+cluster://127.0.0.1:1",
    ],
)
def test_a_dropped_store_is_freed(url: str) -> None:
    """A store that nobody refers to lets go of its connections at once: C84."""
    store: Any = open_store(url)
    with pytest.raises(StoreError):
        store.time_ms(timeout=WAIT)
    exchange, connector = weakref.ref(store._exchange), weakref.ref(store._exchange._connector)
    gc.disable()
    try:
        del store
        assert exchange() is None
        until_freed(connector)
    finally:
        gc.enable()


def until_freed(ref: weakref.ref[Any]) -> None:
    """The thread that connected refers to it for a moment longer."""
    deadline = time.monotonic() + WAIT
    while ref() is not None:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def scene(redis_state_scripted_store: ScriptedStore) -> Iterator[Scene]:
    with publishing(redis_state_scripted_store) as publisher:
        yield Scene(redis_state_scripted_store, publisher)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.__name__)
def test_no_garbage(scene: Scene, path: Callable[[Scene], None]) -> None:
    """What was sent, received or refused is freed when the call ends, errors included: C69."""
    path(scene)
    scene.publisher.flush(WAIT)
    gc.collect()
    gc.disable()
    try:
        for _ in range(TIMES):
            path(scene)
        scene.publisher.flush(WAIT)
        assert gc.collect() == 0
    finally:
        gc.enable()
