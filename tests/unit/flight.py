"""A reader that acts: refreshes in flight, and looks ahead when the test says so."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from redis_state_sync import Snapshot
from redis_state_sync.store import Store
from tests.unit.states import WAIT, Reader


class Acting(Reader):
    """Notes what was applied in flight, too. Prefetching is on; its thread never looks.

    The test calls `look_ahead` in its place, so that everything happens in a known order.
    """

    def __init__(self, store: Store, *, prefetching: bool = True, **kwargs: Any) -> None:
        super().__init__(store, **kwargs)
        self.in_flight: list[Snapshot] = []
        self.subscriber._prefetcher._on = prefetching

    def look_ahead(self, *, later: float = 10.0) -> bool:
        """One look of the prefetching thread, after any cool-down."""
        self.clock.now += later
        return self.subscriber._look_ahead()

    def refresh_in_flight(self) -> Snapshot | None:
        """One refresh between two steps."""
        self.clock.now += 10.0
        return self.subscriber.refresh_in_flight(self.in_flight.append)

    @property
    def ahead(self) -> Any:
        """The version that was fetched and not used."""
        ahead = self.subscriber._arrivals.ahead
        return None if ahead is None else ahead.version


def wait_until(true: Callable[[], Any]) -> None:
    """Until something holds that another thread does."""
    deadline = time.monotonic() + WAIT
    while not true():
        assert time.monotonic() < deadline, "in vain"
        time.sleep(0.001)
