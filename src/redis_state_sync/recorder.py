"""From events to metrics, whatever keeps them: Prometheus' own client, or Ray."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from redis_state_sync import instruments as known
from redis_state_sync.events import (
    Applied,
    Claimed,
    Dropped,
    Event,
    Failed,
    Fetched,
    Looked,
    Polled,
    Published,
    Pushed,
    Recovered,
    Stale,
)
from redis_state_sync.instruments import Instrument
from redis_state_sync.version import Version

# What a failure says of the store: that it is not to be had. Others concern one version.
_DOWN = frozenset(
    {
        *("network", "timeout", "tls", "loading", "auth", "permission"),
        *("readonly", "full", "server", "protocol"),
    }
)
_ASKS = frozenset({"publish", "heartbeat", "poll", "fetch"})
# A poll takes a few microseconds where nothing has to be asked, and noting one must not double it.
_POLLS_EVERY_S = 0.5
_MOST_POLLS = 1000


class Sink(Protocol):
    """Keeps the values of the metrics of one learner or reader."""

    def add(self, instrument: Instrument, value: float, **labels: str) -> None:
        """Counts up. `value` is positive."""
        ...

    def set(self, instrument: Instrument, value: float) -> None:
        """Sets a gauge."""
        ...

    def observe(self, instrument: Instrument, seconds: float, count: int) -> None:
        """Adds to a histogram: so many times the same."""
        ...


class Recorder:
    """An observer that keeps metrics.

    Polls are noted together, twice a second or with whatever else happens.

    Args:
        sink: Where they are kept.
        now: Unix time; replaceable in tests.
        clock: Monotonic seconds; replaceable in tests.
    """

    def __init__(
        self,
        sink: Sink,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sink = sink
        self._now = now
        self._clock = clock
        self._gauges: dict[Instrument, float] = {}
        self._newest: Version | None = None
        self._applied: Version | None = None
        self._polls = 0
        self._asked: list[tuple[float, int]] = []
        self._flush_at = 0.0

    def __call__(self, event: Event, /) -> None:
        """Takes note of one event."""
        if type(event) is Polled:
            self._polled(event)
            return
        self.flush()
        self._note(event)

    def flush(self) -> None:
        """Notes the polls that were put by."""
        self._flush_at = self._clock() + _POLLS_EVERY_S
        polls, self._polls = self._polls, 0
        asked, self._asked = self._asked, []
        if polls:
            self._sink.add(known.POLLS, polls)
        for seconds, count in asked:
            self._sink.observe(known.POLL_SECONDS, seconds, count)

    def renew(self) -> None:
        """Sets every gauge again to what it is. Any thread may call it."""
        for instrument in tuple(self._gauges):
            self._sink.set(instrument, self._gauges[instrument])

    def _polled(self, event: Polled) -> None:
        self._polls += event.count
        asked = event.count - event.unasked
        if asked:
            self._asked.append((event.seconds * event.count / asked, asked))
            if not self._gauges.get(known.STORE_UP):
                self._set(known.STORE_UP, 1)
        if event.newest is not None:
            self._newest = event.newest
            self._measure_lag()
        elif asked and self._gauges.get(known.LAG_VERSIONS):
            self._set(known.LAG_VERSIONS, 0)  # It got there by a push.
        if len(self._asked) >= _MOST_POLLS or self._clock() >= self._flush_at:
            self.flush()

    def _note(self, event: Event) -> None:
        match event:
            case Fetched(bytes_fetched=size, skipped=skipped, seconds=seconds):
                self._sink.observe(known.FETCH_SECONDS, seconds, 1)
                self._add(known.FETCHED_BYTES, size)
                self._add(known.SKIPPED_VERSIONS, skipped)
            case Applied(version=version, seconds=seconds, published_ms=published_ms):
                self._sink.observe(known.APPLY_SECONDS, seconds, 1)
                self._applied = version
                self._set(known.APPLIED_GENERATION, version.generation)
                self._set(known.APPLIED_NUMBER, version.number)
                self._set(known.APPLIED_AT, self._now())
                if published_ms is not None:
                    self._set(known.APPLIED_PUBLISHED_AT, published_ms / 1000)
                self._measure_lag()
            case Published(version=version, seconds=seconds):
                self._sink.observe(known.PUBLISH_SECONDS, seconds, 1)
                self._add(known.SENT_BYTES, event.bytes_sent)
                self._add(known.SAVED_BYTES, event.bytes_saved)
                self._set(known.PUBLISHED_NUMBER, version.number)
                self._set(known.PUBLISHED_AT, self._now())
                self._set(known.STORE_UP, 1)
            case Failed(operation=operation, category=category):
                self._sink.add(known.FAILURES, 1, operation=operation, category=category)
                if category in _DOWN and operation in _ASKS:
                    self._set(known.STORE_UP, 0)
                if category == "fenced" and operation in _ASKS:
                    self._set(known.FENCED, 1)
            case Stale(waited=waited):
                self._add(known.STALE, 1)
                self._add(known.STALE_WAIT_SECONDS, waited)
            case Claimed(generation=generation):
                self._add(known.CLAIMS, 1)
                self._set(known.GENERATION, generation)
                self._set(known.FENCED, 0)
                self._set(known.STORE_UP, 1)
            case Dropped(count=count):
                self._add(known.DROPPED_VERSIONS, count)
            case Looked(seconds=seconds):
                self._sink.observe(known.LOOK_SECONDS, seconds, 1)
            case Recovered():
                self._set(known.STORE_UP, 1)
            case Pushed():
                self._add(known.PUSHES, 1)

    def _measure_lag(self) -> None:
        newest, applied = self._newest, self._applied
        lag = 0
        if newest is not None and (applied is None or newest > applied):
            # Of another learner's versions it has none.
            same = applied is not None and applied.generation == newest.generation
            lag = newest.number - (applied.number if applied and same else 0)
        self._set(known.LAG_VERSIONS, lag)

    def _add(self, instrument: Instrument, value: float) -> None:
        if value > 0:  # Ray refuses 0.
            self._sink.add(instrument, value)

    def _set(self, instrument: Instrument, value: float) -> None:
        self._gauges[instrument] = value
        self._sink.set(instrument, value)
