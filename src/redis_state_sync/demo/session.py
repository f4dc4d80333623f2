"""One run: takes samples, kills the server when it is time, keeps the view up to date."""

from __future__ import annotations

import threading
import time
from typing import Protocol

from redis_state_sync.demo.chaos import Chaos, is_half_way
from redis_state_sync.demo.options import Options
from redis_state_sync.demo.timeline import Outage, Sample, Timeline
from redis_state_sync.demo.view import View
from redis_state_sync.embedded import EmbeddedServer
from redis_state_sync.errors import StoreError
from redis_state_sync.publisher import StatePublisher

# Goes on for a little after the recovery, so that the plot shows what comes next.
_TAIL_S = 4.0


class Run(Protocol):
    """A learner and its readers, ready to train."""

    @property
    def publisher(self) -> StatePublisher:
        """The learner's."""
        ...

    def train(self, session: Session) -> None:
        """Trains until ``session.done``, telling the session what it sees."""
        ...

    def close(self) -> None:
        """Ends learner and readers. May be called at any time, and twice."""
        ...


class Session:
    """The run as the user sees it.

    Args:
        options: What the user asked for.
        timeline: Where to keep what is seen.
        view: Shows it.
        server: The server, if it is ours.
    """

    def __init__(
        self, options: Options, timeline: Timeline, view: View, server: EmbeddedServer | None
    ) -> None:
        self.options = options
        self.timeline = timeline
        self._view = view
        self._server = server
        self._chaos: Chaos | None = None
        self._lock = threading.Lock()
        self._started = time.monotonic()

    @property
    def now(self) -> float:
        """Seconds since training began."""
        return time.monotonic() - self._started

    def begin(self) -> None:
        """Starts the clock."""
        self._started = time.monotonic()
        self._view.begin(self.timeline)

    def server_is_up(self, healthy: bool) -> bool:
        """Whether the server runs; of one that is not ours we know only whether it answers."""
        return healthy if self._server is None else self._server.pid is not None

    def tick(self, sample: Sample) -> None:
        """Takes note of what was seen, and acts on it."""
        with self._lock:
            before = self.timeline.outage
            was_recovered = before is not None and before.recovered_at is not None
            self.timeline.add(sample)
            if (
                self._server is not None
                and self.options.chaos
                and self._chaos is None
                and is_half_way(self.timeline, self.options)
            ):
                self._chaos = Chaos(self._server, self.options.outage_s, self._down, self._up)
                self._chaos.strike()
            outage = self.timeline.outage
            recovery = None if outage is None or was_recovered else outage.recovery_s
        if recovery is not None:
            self.note(f"every reader is up to date again, {recovery:.1f} s after the server")
        self._view.show(self.now)

    def note(self, text: str) -> None:
        """Tells the user something."""
        self._view.note(self.now, text)

    @property
    def done(self) -> bool:
        """Whether everything that there is to see has been seen, or the time is over."""
        now, options, outage = self.now, self.options, self.timeline.outage
        if now >= options.seconds:
            return True
        since = 0.0
        if options.chaos:
            if outage is None or outage.recovered_at is None:
                return False
            since = outage.recovered_at
            if now < since + _TAIL_S:
                return False
        best = self.timeline.best_return_since(since)
        return options.target is not None and best is not None and best >= options.target

    def end(self) -> None:
        """Ends a running outage."""
        if self._chaos is not None:
            self._chaos.cancel()

    def _down(self) -> None:
        last = self.timeline.last
        self.timeline.outage = Outage(down_at=self.now, stored_before=last.stored if last else 0)
        self.note(f"killed the server (SIGKILL); back in {self.options.outage_s:g} s, empty")

    def _up(self, error: StoreError | None) -> None:
        outage = self.timeline.outage
        if error is not None:
            self.note(f"the server does not start again: {error}")
        elif outage is not None:
            outage.up_at = self.now
            self.note("started the server again: it holds nothing")
