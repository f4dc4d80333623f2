"""What metrics are made of events."""

from __future__ import annotations

from collections import defaultdict

import pytest

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
from redis_state_sync.recorder import Recorder
from redis_state_sync.version import Version


class Kept:
    """A sink that keeps everything, and refuses what Ray and Prometheus refuse."""

    def __init__(self) -> None:
        self.sums: dict[str, float] = defaultdict(float)
        self.gauges: dict[str, float] = {}
        self.times: dict[str, list[float]] = defaultdict(list)
        self.labels: list[dict[str, str]] = []
        self.calls = 0

    def add(self, instrument: Instrument, value: float, **labels: str) -> None:
        assert instrument.kind == "counter"
        assert value > 0
        assert set(labels) == set(instrument.labels)
        self.calls += 1
        self.sums[_short(instrument)] += value
        if labels:
            self.labels.append(labels)

    def set(self, instrument: Instrument, value: float) -> None:
        assert instrument.kind == "gauge"
        self.calls += 1
        self.gauges[_short(instrument)] = value

    def observe(self, instrument: Instrument, seconds: float, count: int) -> None:
        assert instrument.kind == "histogram"
        assert count > 0
        self.calls += 1
        self.times[_short(instrument)] += [seconds] * count


def _short(instrument: Instrument) -> str:
    return instrument.name.removeprefix(known.PREFIX)


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def made() -> tuple[Recorder, Kept, Clock]:
    kept, clock = Kept(), Clock()
    return Recorder(kept, now=lambda: 1000.0 + clock.now, clock=clock), kept, clock


def told(*events: Event) -> Kept:
    recorder, kept, _ = made()
    for event in events:
        recorder(event)
    recorder.flush()
    return kept


def test_polls() -> None:
    """Idle polls count as often as they were made, and their time as often as they asked."""
    kept = told(
        Polled(None, 0.5),
        Polled(None, 0.25, count=4),
        Polled(None, 0.1, count=10, unasked=8),
        Polled(None, 0.0, unasked=1),
    )
    assert kept.sums == {"polls_total": 16}
    assert kept.times["poll_seconds"] == [0.5, *[0.25] * 4, *[pytest.approx(0.5)] * 2]


def test_a_reader() -> None:
    """Fetches and what was applied: times, bytes, version, when, and when it was published."""
    version = Version(7, 3)
    kept = told(Fetched(version, 100, 2, 0.5), Applied(version, 0.25, 900_500))
    assert kept.sums == {"fetched_bytes_total": 100, "skipped_versions_total": 2}
    assert kept.times == {"fetch_seconds": [0.5], "apply_seconds": [0.25]}
    assert kept.gauges == {
        "applied_generation": 7,
        "applied_version_number": 3,
        "applied_timestamp_seconds": 1000,
        "applied_published_timestamp_seconds": 900.5,
        "lag_versions": 0,
    }


def test_a_fetch_of_nothing_new() -> None:
    """What is 0 is not added: Ray refuses it."""
    assert told(Fetched(Version(1, 1), 0, 0, 0.5)).sums == {}
    assert told(Published(Version(1, 1), 0, 0, 0.5), Stale(None, 0.0)).sums == {"stale_total": 1}


@pytest.mark.parametrize(
    ("events", "lag"),
    [
        ([Polled(Version(1, 4), 0.1)], 4),
        ([Applied(Version(1, 1), 0.1), Polled(Version(1, 4), 0.1)], 3),
        ([Applied(Version(1, 1), 0.1), Polled(Version(2, 4), 0.1)], 4),
        ([Polled(Version(1, 4), 0.1), Applied(Version(1, 2), 0.1)], 2),
        ([Polled(Version(1, 4), 0.1), Applied(Version(1, 4), 0.1)], 0),
        # Another learner's, after which an older one's is no longer newer.
        ([Polled(Version(1, 4), 0.1), Applied(Version(2, 1), 0.1)], 0),
        # A push brought it.
        ([Polled(Version(1, 4), 0.1), Polled(None, 0.1)], 0),
        # Nobody was asked.
        ([Polled(Version(1, 4), 0.1), Polled(None, 0.0, unasked=1)], 4),
    ],
)
def test_lag(events: list[Event], lag: int) -> None:
    """Lag is what polls have shown less what is applied; of another generation, all of it."""
    assert told(*events).gauges["lag_versions"] == lag


def test_a_learner() -> None:
    """Publishes, drops, claims and pushes."""
    kept = told(
        Claimed(7),
        Published(Version(7, 1), 100, 20, 0.5),
        Dropped(3),
        Pushed(Version(7, 2)),
        Looked(0.25),
        Claimed(8),
    )
    assert kept.times == {"publish_seconds": [0.5], "look_seconds": [0.25]}
    assert kept.sums == {
        "claims_total": 2,
        "sent_bytes_total": 100,
        "saved_bytes_total": 20,
        "dropped_versions_total": 3,
        "pushes_total": 1,
    }
    assert kept.gauges == {
        "generation": 8,
        "published_version_number": 1,
        "published_timestamp_seconds": 1000,
        "fenced": 0,
        "store_up": 1,
    }


def test_staleness() -> None:
    """Refreshes beyond a limit, and what they waited."""
    kept = told(Stale(None, 0.5), Stale(Version(1, 1), 1.5))
    assert kept.sums == {"stale_total": 2, "stale_wait_seconds_total": 2}


def test_failures() -> None:
    """Failures count by operation and category."""
    kept = told(Failed("fetch", "integrity", "x"), Failed("poll", "network", "x"))
    assert kept.sums == {"failures_total": 2}
    assert kept.labels == [
        {"operation": "fetch", "category": "integrity"},
        {"operation": "poll", "category": "network"},
    ]


@pytest.mark.parametrize(
    ("events", "up"),
    [
        ([Polled(None, 0.1)], 1),
        ([Failed("poll", "timeout", "x")], 0),
        ([Failed("poll", "timeout", "x"), Polled(None, 0.0, unasked=1)], 0),
        ([Failed("poll", "timeout", "x"), Polled(None, 0.1)], 1),
        ([Polled(None, 0.1), Failed("apply", "apply", "x")], 1),
        ([Polled(None, 0.1), Failed("fetch", "blob_missing", "x")], 1),
        ([Claimed(1), Failed("publish", "full", "x")], 0),
        ([Claimed(1), Failed("retain", "timeout", "x")], 1),
        ([Claimed(1), Failed("heartbeat", "network", "x"), Recovered("heartbeat")], 1),
        ([Failed("publish", "network", "x"), Published(Version(1, 1), 1, 1, 1.0)], 1),
        ([Claimed(1), Failed("publish", "fenced", "x")], 1),
    ],
)
def test_store_up(events: list[Event], up: int) -> None:
    """The store is down if it failed last, and up if it answered last; not if a version is bad."""
    assert told(*events).gauges["store_up"] == up


def test_fenced() -> None:
    """A learner that is refused says so; one that took over again does not."""
    refused = Failed("heartbeat", "fenced", "x")
    assert told(Claimed(1), refused).gauges["fenced"] == 1
    assert told(Claimed(1), refused, Claimed(2)).gauges["fenced"] == 0


def test_polls_are_noted_together() -> None:
    """Polls in a row cost the sink nothing until half a second has passed, and then little."""
    recorder, kept, clock = made()
    recorder(Polled(None, 0.0, unasked=1))
    calls = kept.calls
    for _ in range(500):
        recorder(Polled(None, 0.0, unasked=1))
    assert kept.calls == calls
    clock.now = 0.6
    recorder(Polled(None, 0.0, unasked=1))
    assert kept.calls == calls + 1
    assert kept.sums["polls_total"] == 502


def test_polls_are_not_kept_for_long() -> None:
    """However many polls there are in half a second, memory is bounded, and all count."""
    recorder, kept, _ = made()
    for _ in range(5000):
        recorder(Polled(None, 0.1))
        assert len(recorder._asked) <= 1000
    recorder.flush()
    assert len(kept.times["poll_seconds"]) == 5000


def test_polls_come_before_what_follows() -> None:
    """What else happens is noted after the polls before it."""
    recorder, kept, _ = made()
    recorder(Polled(None, 0.0, unasked=1))
    recorder(Polled(Version(1, 1), 0.1))
    recorder(Fetched(Version(1, 1), 1, 0, 0.1))
    assert kept.sums["polls_total"] == 2


def test_gauges_are_renewed() -> None:
    """On demand every gauge is set again to what it is."""
    recorder, kept, _ = made()
    recorder(Applied(Version(1, 1), 0.1))
    before = dict(kept.gauges)
    kept.gauges.clear()
    recorder.renew()
    assert kept.gauges == before


def test_every_metric_is_made() -> None:
    """The events that there are make every metric of learners and readers, and no other."""
    kept = told(
        Claimed(1),
        Published(Version(1, 1), 1, 1, 0.1),
        Dropped(1),
        Pushed(Version(1, 1)),
        Polled(Version(1, 1), 0.1),
        Fetched(Version(1, 1), 1, 1, 0.1),
        Applied(Version(1, 1), 0.1, 1),
        Failed("poll", "network", "x"),
        Stale(None, 1.0),
        Looked(0.1),
        Recovered("publish"),
    )
    names = {*kept.sums, *kept.gauges, *kept.times}
    assert names == {_short(i) for i in known.of("learner", "reader", "both")}
