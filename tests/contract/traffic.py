"""A learner that publishes all the time, readers that follow it, and what they may have seen."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from redis_state_sync import Snapshot, StatePublisher, StateSubscriber, Version, open_store
from redis_state_sync.events import Event, Published
from tests.contract.conftest import WAIT


def state(number: int) -> dict[str, Any]:
    """A state that holds its number in every component."""
    return {
        "rl_module/p": {"w": np.full(500, number, np.float32)},
        "counters": {"steps": number},
    }


def number_in(snapshot: Snapshot) -> int:
    """The number in a state that is no mixture of two."""
    weights, steps = snapshot["rl_module/p"]["w"], snapshot["counters"]["steps"]
    assert (weights == steps).all()
    return int(steps)


class Traffic:
    """Threads that run until `stop`.

    Args:
        url: The store.
        namespace: Which shared state.
        readers: How many subscribers.
        tracking: Whether they rely on the server's word that nothing changed.
    """

    def __init__(
        self, url: str, namespace: str, *, readers: int = 2, tracking: bool = False
    ) -> None:
        self.stored: list[tuple[float, Version]] = []
        self.applied: list[list[tuple[Version, int]]] = [[] for _ in range(readers)]
        self.stall_s = 0.0
        self._published: dict[int, int] = {}
        self._errors: list[BaseException] = []
        self._enough, self._done = threading.Event(), threading.Event()
        self.publisher = StatePublisher(
            open_store(url), namespace, connect_timeout_s=WAIT, observers=[self._note]
        )
        self._subscribers = [
            StateSubscriber(open_store(url), namespace, tracking=tracking) for _ in range(readers)
        ]
        work: list[Callable[[], None]] = [self._publish, self._watch_the_machine]
        work += [self._reader(number) for number in range(readers)]
        self._threads = [threading.Thread(target=self._guarded, args=(each,)) for each in work]
        for thread in self._threads:
            thread.start()

    def stop(self) -> Version:
        """Ends publishing, waits until every reader holds the last version, and checks all.

        Returns:
            The last version.
        """
        try:
            self._enough.set()
            self._threads[0].join(WAIT)
            last = self.publisher.flush(WAIT)
            deadline = time.monotonic() + WAIT
            while any(s.held != last for s in self._subscribers) and time.monotonic() < deadline:
                time.sleep(0.01)
        finally:
            self._done.set()
            for thread in self._threads:
                thread.join(WAIT)
            for each in (self.publisher, *self._subscribers):
                each.close()
        assert self._errors == []
        assert last is not None
        for seen in self.applied:
            versions = [version for version, _ in seen]
            assert versions == sorted(set(versions))
            assert versions[-1] == last
            assert all(number == self._content_of(version) for version, number in seen)
        return last

    def stored_since(self, moment: float) -> list[tuple[float, Version]]:
        """The versions stored after a `time.monotonic()`, with their times."""
        return [entry for entry in list(self.stored) if entry[0] > moment]

    def _content_of(self, version: Version) -> int:
        # A version that the heartbeat published again holds what the one before it held.
        return self._published[max(n for n in self._published if n <= version.number)]

    def _note(self, event: Event) -> None:
        if isinstance(event, Published):
            self.stored.append((time.monotonic(), event.version))

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self._errors.append(error)

    def _publish(self) -> None:
        number = 0
        while not self._enough.is_set():
            number += 1
            self._published[self.publisher.publish(state(number)).version.number] = number
            time.sleep(0.005)

    def _reader(self, which: int) -> Callable[[], None]:
        subscriber, seen = self._subscribers[which], self.applied[which]

        def read() -> None:
            while not self._done.is_set():
                subscriber.refresh(lambda s: seen.append((s.version, number_in(s))))
                time.sleep(0.005)

        return read

    def _watch_the_machine(self) -> None:
        """Adds up for how long it stood still: no promise about time holds meanwhile."""
        while not self._done.is_set():
            before = time.monotonic()
            time.sleep(0.01)
            self.stall_s += max(0.0, time.monotonic() - before - 0.03)
