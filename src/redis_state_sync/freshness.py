"""Whether what a reader acts with is too old, and what is then to be done."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from redis_state_sync.errors import StaleStateError
from redis_state_sync.events import Stale
from redis_state_sync.reports import Reports
from redis_state_sync.settings import check_limits
from redis_state_sync.version import Version

logger = logging.getLogger("redis_state_sync")

_FIRST_PAUSE_S = 0.005
_LONGEST_PAUSE_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How old a state may be that a reader goes on with. See `Settings` for each of them.

    Raises:
        SettingsError: If one is wrong.
    """

    max_staleness_s: float | None = None
    max_staleness_versions: int | None = None
    on_stale: Literal["raise", "warn", "wait"] = "raise"
    stale_wait_s: float = 60.0

    def __post_init__(self) -> None:
        check_limits(self)


class Freshness:
    """Compares what a reader has with its limits. All calls are made with the reader's lock.

    Args:
        limits: The limits.
        reports: Hears when they are exceeded.
        where: Names the namespace and its store, for messages.
        clock: Monotonic seconds.
    """

    def __init__(
        self, limits: Limits, reports: Reports, where: Callable[[], str], clock: Callable[[], float]
    ) -> None:
        self._limits = limits
        self._reports = reports
        self._where = where
        self._clock = clock
        self._fresh_since = clock()
        self._warned = False

    def applied(self) -> None:
        """The reader has a newer version now."""
        self._fresh_since = self._clock()

    def pause(
        self, held: Version | None, announced: Version | None, waits_since: float | None
    ) -> float:
        """Seconds for which the reader must wait before it looks again; 0: it may go on.

        Args:
            held: What the reader acts with.
            announced: The newest version that it has heard of.
            waits_since: When it began to wait; None: it does not wait yet.

        Raises:
            StaleStateError: If it must neither go on nor wait any longer.
        """
        limits = self._limits
        why = self._why(held, announced)
        waited = 0.0 if waits_since is None else self._clock() - waits_since
        if why is None:
            self._warned = False
            if waits_since is not None:
                self._reports.tell(Stale(held, waited))
            return 0.0
        if limits.on_stale == "wait" and waited < limits.stale_wait_s:
            longer = min(_LONGEST_PAUSE_S, max(_FIRST_PAUSE_S, waited / 2))
            return min(longer, limits.stale_wait_s - waited)
        self._reports.tell(Stale(held, waited))
        if limits.on_stale != "warn":
            raise StaleStateError(why if waits_since is None else f"waited {waited:.1f} s: {why}")
        if not self._warned:
            self._warned = True
            logger.warning("going on all the same: %s", why)
        return 0.0

    def _why(self, held: Version | None, announced: Version | None) -> str | None:
        """Why what is held is too old, or None."""
        longest, most = self._limits.max_staleness_s, self._limits.max_staleness_versions
        if longest is not None and (age := self._clock() - self._fresh_since) > longest:
            return (
                f"no new version for {age:.1f} s (max_staleness_s is {longest:g}): "
                f"{self._where()}, held is {held}; is a learner publishing there?"
            )
        if most is not None and (behind := _behind(held, announced)) > most:
            return (
                f"{behind} versions behind (max_staleness_versions is {most}): {self._where()}, "
                f"held is {held} and there was {announced}, which could not be fetched or applied"
            )
        return None


def _behind(held: Version | None, announced: Version | None) -> int:
    """How many versions lie between; 0 where they can not be counted."""
    if held is None or announced is None or held.generation != announced.generation:
        return 0
    return max(0, announced.number - held.number)
