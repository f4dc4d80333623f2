"""Kills the server half-way through, and brings it back empty."""

from __future__ import annotations

import threading
from collections.abc import Callable

from redis_state_sync.demo.options import Options
from redis_state_sync.demo.timeline import Timeline
from redis_state_sync.embedded import EmbeddedServer
from redis_state_sync.errors import StoreError

_SHARE_OF_TARGET = 0.5
# Early enough to recover and to go on learning before the time is over.
_SHARE_OF_TIME = 0.4
_LEAST_S = 3.0


def is_half_way(timeline: Timeline, options: Options) -> bool:
    """Whether to kill the server now: half the target is reached, or much of the time gone."""
    sample = timeline.last
    if sample is None or sample.oldest_held < 2 or sample.t < _LEAST_S:
        return False
    best = timeline.best_return or 0.0
    learned = options.target is not None and best >= _SHARE_OF_TARGET * options.target
    return learned or sample.t >= _SHARE_OF_TIME * options.seconds


class Chaos:
    """One outage, on a thread of its own: its length must not depend on how training goes.

    Args:
        server: What to kill; it must be ours.
        seconds: How long it stays away.
        on_down: Called once it is dead.
        on_up: Called once it listens again, or with the reason why it does not.
    """

    def __init__(
        self,
        server: EmbeddedServer,
        seconds: float,
        on_down: Callable[[], None],
        on_up: Callable[[StoreError | None], None],
    ) -> None:
        self._server = server
        self._seconds = seconds
        self._on_down = on_down
        self._on_up = on_up
        self._cancelled = threading.Event()
        self._thread = threading.Thread(target=self._run, name="demo-chaos", daemon=True)

    def strike(self) -> None:
        """Begins the outage."""
        self._thread.start()

    def cancel(self) -> None:
        """Ends it early, and leaves the server as it is."""
        self._cancelled.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        self._server.kill()
        self._on_down()
        if self._cancelled.wait(self._seconds):
            return
        try:
            self._server.start()
        except StoreError as error:
            self._on_up(error)
        else:
            self._on_up(None)
