"""A reader that notes what it applied, and shorthands for publishing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from redis_state_sync import Snapshot, StatePublisher, StateSubscriber
from redis_state_sync.events import Event
from redis_state_sync.store import Store

WAIT = 20.0
"""Seconds that a test waits for what must happen: generous, the machine is shared."""


class Clock:
    """A clock that stands still unless told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Reader:
    """A subscriber, the states that it applied, and the events that it saw."""

    def __init__(self, store: Store, namespace: str = "n", **kwargs: Any) -> None:
        self.clock = Clock()
        self.events: list[Event] = []
        self.applied: list[Snapshot] = []
        self.subscriber = StateSubscriber(
            store,
            namespace,
            **{"clock": self.clock, "observers": [self.events.append], "name": "me", **kwargs},
        )

    def refresh(self) -> Snapshot | None:
        """One refresh, after any cool-down."""
        self.clock.now += 10.0
        return self.subscriber.refresh(self.applied.append)

    def seen(self, kind: type[Any]) -> list[Any]:
        """The events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]


@contextmanager
def publishing(store: Store, namespace: str = "n", **kwargs: Any) -> Iterator[StatePublisher]:
    """A publisher that is closed at the end, with a heartbeat that does not come by itself."""
    publisher = StatePublisher(store, namespace, **{"heartbeat_s": 3600.0, **kwargs})
    try:
        yield publisher
    finally:
        publisher.close()


def state(number: int) -> dict[str, Any]:
    """A state that holds its own number in each of its components."""
    return {"rl_module/p": {"w": np.full(4, number)}, "counters": {"steps": number}}


def number_in(snapshot: Snapshot) -> int:
    """The number in a state; every component must hold the same one."""
    weights, steps = snapshot["rl_module/p"]["w"], snapshot["counters"]["steps"]
    assert (weights == steps).all(), f"{snapshot} mixes {weights} and {steps}"
    return int(steps)
