"""What the exporter knows: looks at a store again and again, on a thread of its own."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from redis_state_sync.cli.overview import Overview, Reader, look_at
from redis_state_sync.errors import (
    RedisStateSyncError,
    StoreUnavailableError,
    UnknownVersionError,
)
from redis_state_sync.history import History
from redis_state_sync.rollback import was_refreshed
from redis_state_sync.store import Store
from redis_state_sync.version import Version

logger = logging.getLogger("redis_state_sync")

# Whether a learner is at work is known from two looks: four of its heartbeats apart.
_SECOND_LOOK_S = 2.0


@dataclass(frozen=True, slots=True)
class Seen:
    """One namespace, as it was seen last.

    Args:
        overview: What there was.
        at: When, a `time.monotonic()`.
        learner_up: Whether a learner looks after it; None if that is not known yet.
        readers: Those of its readers that are not gone.
        lags_s: Of each of these, for how many seconds there has been a version that it lacks.
    """

    overview: Overview
    at: float
    learner_up: bool | None
    readers: tuple[Reader, ...]
    lags_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Look:
    """What one look found.

    Args:
        up: Whether the store answered.
        seconds: How long it took.
        ended: When the last one that succeeded ended, in Unix time; None: none did.
        namespaces: What holds something.
        errors: How often looks have failed so far, by category.
    """

    up: bool
    seconds: float
    ended: float | None
    namespaces: tuple[Seen, ...] = ()
    errors: Mapping[str, int] = field(default_factory=dict)


class Looker:
    """Looks every so often. Whoever asks for `latest` never waits for the store.

    Args:
        store: Where. It is closed by `close`.
        names: The namespaces to look at; none: all that there are.
        interval_s: Seconds from the end of one look to the next.
        timeout_s: Most seconds for each question.
        forget_readers_s: A reader that has been behind for longer is gone: what ends says nothing.
    """

    def __init__(
        self,
        store: Store,
        names: Iterable[str],
        *,
        interval_s: float,
        timeout_s: float,
        forget_readers_s: float,
    ) -> None:
        self._store = store
        self._names = tuple(names)
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._forget_readers_s = forget_readers_s
        self._errors: Counter[str] = Counter()
        self._failing = ""
        self._histories: dict[str, History] = {}
        self._stop = threading.Event()
        self.latest = Look(False, 0.0, None)
        """What was seen last."""
        self.latest = self.look()
        self._thread = threading.Thread(target=self._run, name="redis-state-sync-look", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Looks no more."""
        self._stop.set()
        self._thread.join(self._timeout_s)
        self._store.close()

    def _run(self) -> None:
        pause = min(_SECOND_LOOK_S, self._interval_s)
        while not self._stop.wait(pause):
            self.latest = self.look()
            pause = self._interval_s

    def look(self) -> Look:
        """Looks once, now. Never raises."""
        before = {seen.overview.namespace: seen for seen in self.latest.namespaces}
        started, problem = time.monotonic(), ""
        found: list[Seen] = []
        try:
            names = self._names or self._store.namespaces(timeout=self._timeout_s)
            for name in names:
                seen = self._look_at(name, before.get(name))
                if seen is not None:
                    found.append(seen)
        except RedisStateSyncError as error:
            self._errors[error.category] += 1
            problem = str(error)
        except Exception as error:
            # A defect of ours must be seen, and not end what others rely on.
            self._errors["other"] += 1
            problem = repr(error)
            logger.exception("a look failed")
        self._say(problem)
        up = not problem
        return Look(
            up,
            time.monotonic() - started,
            time.time() if up else self.latest.ended,
            tuple(found) if up else (),
            dict(self._errors),
        )

    def _look_at(self, name: str, before: Seen | None) -> Seen | None:
        history = self._histories.get(name)
        if history is None:
            history = History(self._store, name, timeout_s=self._timeout_s)
            self._histories[name] = history
        at = time.monotonic()
        try:
            overview = look_at(history)
        except UnknownVersionError:
            del self._histories[name]  # It expired, or was removed.
            return None
        except StoreUnavailableError:
            raise
        except RedisStateSyncError as error:
            self._errors[error.category] += 1  # Of this one; the others may be looked at.
            return None
        lags = [(reader, _lag_s(overview, reader)) for reader in overview.readers]
        there = [(reader, lag) for reader, lag in lags if lag <= self._forget_readers_s]
        return Seen(
            overview,
            at,
            _learner_up(before, overview, at),
            tuple(reader for reader, _ in there),
            tuple(lag for _, lag in there),
        )

    def _say(self, problem: str) -> None:
        """Once for each outage."""
        if problem and not self._failing:
            logger.warning("%s can not be looked at: %s", self._store.describe(), problem)
        elif self._failing and not problem:
            logger.warning("%s is back", self._store.describe())
        self._failing = problem


def _learner_up(before: Seen | None, now: Overview, at: float) -> bool | None:
    if before is None:
        return None
    old = before.overview
    if old.generation != now.generation or _top(old) != _top(now):
        return True
    if now.claimed_by is not None:
        return None  # It refreshes nothing before it has published.
    return was_refreshed(old.expires_in_s, now.expires_in_s, at - before.at)


def _top(overview: Overview) -> Version | None:
    return overview.newest.version if overview.newest else None


def _lag_s(overview: Overview, reader: Reader) -> float:
    """For how long there has been a version that a reader has not fetched; 0: there is none.

    Where the first such one is dropped already, that is at most since the reader last fetched.
    """
    newer = [stored for stored in overview.versions if stored.version > reader.version]
    if not newer:
        return 0.0
    first = newer[-1]
    follows = Version(reader.version.generation, reader.version.number + 1)
    age = overview.age_s(first) if first.version == follows else None
    return max(0.0, reader.age_s if age is None else min(age, reader.age_s))
