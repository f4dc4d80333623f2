"""What was seen during a run, and what follows from it. Plain data: no clock, no server, no Ray."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One look at learner, readers and server.

    Args:
        t: Seconds since training began.
        newest: Number of the newest version that the learner gave out.
        stored: Number of the newest version that the server confirmed.
        held: Number of the version that each reader acts with; None before its first.
        healthy: Whether the learner's last attempt to reach the server succeeded.
        server_up: Whether the server runs (as far as we know, if it is not ours).
        env_steps: Sampled by all readers so far.
        mean_return: Mean return of the latest episodes, None before the first.
        staleness: Gradient updates between the policy that sampled and the one that learns.
        poll_s: What asking for a newer version costs, in seconds.
        fetch_s: What fetching one costs, in seconds.
        publish_s: What publishing one costs, in seconds.
        published: Versions that were stored so far.
        dropped: Versions that a later one replaced before they were sent.
        pushes: Syncs that went Ray's own way, because the server was down.
        failures: By ``"who: category"``, so far.
    """

    t: float
    newest: int
    stored: int
    held: tuple[int | None, ...]
    healthy: bool
    server_up: bool
    env_steps: int
    mean_return: float | None = None
    staleness: float | None = None
    poll_s: float | None = None
    fetch_s: float | None = None
    publish_s: float | None = None
    published: int = 0
    dropped: int = 0
    pushes: int = 0
    failures: Mapping[str, int] = field(default_factory=dict)

    @property
    def oldest_held(self) -> int:
        """Number of the version of the reader that is furthest behind."""
        return min((held or 0 for held in self.held), default=0)

    @property
    def lag(self) -> int:
        """How many versions the reader that is furthest behind is behind the learner."""
        return max(0, self.newest - self.oldest_held)


@dataclass
class Outage:
    """When the server went, came back, and when every reader had the newest version again.

    Seconds since training began; None as long as it did not happen.
    """

    down_at: float
    stored_before: int
    up_at: float | None = None
    healthy_at: int | None = None
    recovered_at: float | None = None

    def look(self, sample: Sample) -> None:
        """Notices the recovery.

        While the server is down, Ray may push versions to the readers. What the learner gives out
        after it stored the first version again can only have come from the server.
        """
        if self.up_at is None or self.recovered_at is not None:
            return
        if self.healthy_at is None:
            if sample.healthy and sample.stored > self.stored_before:
                self.healthy_at = sample.newest
        elif sample.oldest_held > self.healthy_at:
            self.recovered_at = sample.t

    @property
    def seconds(self) -> float | None:
        """How long the server was away."""
        return None if self.up_at is None else self.up_at - self.down_at

    @property
    def recovery_s(self) -> float | None:
        """From the server's return until every reader had a version from it."""
        if self.up_at is None or self.recovered_at is None:
            return None
        return self.recovered_at - self.up_at


class Timeline:
    """Every sample of a run, and its outage if there was one."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self.outage: Outage | None = None

    def add(self, sample: Sample) -> None:
        """Takes note of one sample."""
        self.samples.append(sample)
        if self.outage is not None:
            self.outage.look(sample)

    @property
    def last(self) -> Sample | None:
        """The newest sample."""
        return self.samples[-1] if self.samples else None

    @property
    def best_return(self) -> float | None:
        """The best mean return so far."""
        return self.best_return_since(0.0)

    def best_return_since(self, t: float) -> float | None:
        """The best mean return from a time on."""
        return max(
            (s.mean_return for s in self.samples if s.mean_return is not None and s.t >= t),
            default=None,
        )

    def env_steps_at(self, t: float) -> float:
        """Env steps at a time, interpolated."""
        if not self.samples:
            return 0.0
        return float(np.interp(t, [s.t for s in self.samples], [s.env_steps for s in self.samples]))

    def worst_lag(self, since: float, until: float) -> int:
        """The greatest lag between two times."""
        return max((s.lag for s in self.samples if since <= s.t <= until), default=0)

    def pushes_between(self, since: float, until: float) -> int:
        """Syncs that went Ray's own way between two times."""
        counts = [s.pushes for s in self.samples if since <= s.t <= until]
        return counts[-1] - counts[0] if counts else 0


class EpisodeWindow:
    """Mean return over the latest episodes, from means over batches of them.

    Args:
        episodes: The fewest episodes to look at, once there are that many.
    """

    def __init__(self, episodes: int) -> None:
        self._episodes = episodes
        self._batches: list[tuple[int, float]] = []

    def add(self, count: int, mean: float) -> None:
        """Takes note of `count` episodes with this mean return."""
        if count < 1 or not math.isfinite(mean):
            return
        self._batches.append((count, mean))
        while _count(self._batches[1:]) >= self._episodes:
            del self._batches[0]

    @property
    def mean(self) -> float | None:
        """The mean, or None as long as no episode ended."""
        total = _count(self._batches)
        return sum(c * mean for c, mean in self._batches) / total if total else None


def _count(batches: Iterable[tuple[int, float]]) -> int:
    return sum(count for count, _ in batches)
