"""Invariant 5: how long it takes after a fault until all is as it was."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from redis_state_sync import Version
from tests.chaos.bounds import RECOVERED_S
from tests.chaos.line_probe import LineProbe
from tests.chaos.newcomer import Newcomer
from tests.chaos.stalls import Interval
from tests.chaos.world import World

# For how long a recovery that comes too late is waited for, to say how late it was.
_GIVEN_UP_S = 30.0
_TICK_S = 0.01

Times = Sequence[tuple[float, Version]]


@dataclass(frozen=True)
class Recovery:
    """Seconds from the end of a fault.

    Args:
        learner: Until a version was stored; 0 if it was not asked to publish.
        readers: Until the last reader held the newest version.
        newcomer: Until a reader without anything held it.
        disturbed: Until the machine stood still, or the line was slow, for the last time before
            that. A poll that is given up for that is a failure like any other: the reader leaves
            the store alone for up to 1.5 s once more.
    """

    learner: float
    readers: float
    newcomer: float
    disturbed: float = 0.0

    @property
    def seconds(self) -> float:
        """Until all was as before."""
        return max(self.learner, self.readers, self.newcomer)


def recovered(
    since: float, stored: Times, readers: Sequence[Times], newcomer: Times, *, quiet: bool = False
) -> Recovery | None:
    """How long it took until all was well; None: not yet.

    Args:
        since: When the fault ended.
        stored: The versions of the living learner, with their times.
        readers: What each reader applied.
        newcomer: What a reader applied that had nothing.
        quiet: The learner is not asked to publish. What it stored last has to be there.
    """
    if quiet:
        learner, wanted = 0.0, stored[-1][1]
    else:
        found = next(((t, version) for t, version in stored if t > since), None)
        if found is None:
            return None
        learner, wanted = found[0] - since, found[1]
    held = [_first(applied, wanted) for applied in (*readers, newcomer)]
    if None in held:
        return None
    *old, new = [max(0.0, t - since) for t in held if t is not None]
    return Recovery(learner, max(old, default=0.0), new)


def too_late(recovery: Recovery | None, grace_s: float = 0.0) -> bool:
    """Whether this breaks the promise."""
    if recovery is None:
        return True
    return recovery.seconds - recovery.disturbed > RECOVERED_S + grace_s


def last_disturbance(since: float, seconds: float, intervals: Iterable[Interval]) -> float:
    """Seconds from the end of a fault to the end of the last interval that began in time."""
    ends = [end for begin, end in intervals if begin < since + seconds and end > since]
    return min(seconds, max(ends, default=since) - since)


def _first(applied: Times, wanted: Version) -> float | None:
    """When this version or a newer one was applied first."""
    found = None
    for t, version in reversed(applied):
        if version < wanted:
            break
        found = t
    return found


def recover(world: World, since: float, grace_s: float = 0.0) -> Recovery | None:
    """Waits until every reader, and one that has nothing yet, holds the newest version.

    Args:
        world: The processes.
        since: When the fault ended.
        grace_s: What the fault leaves behind may take so much longer.

    Returns:
        How long it took, or None if it did not happen. It is a violation if that was too long.
    """
    newcomer, probe = world.newcomer(), LineProbe(world.proxies["readers"].port)
    try:
        while True:
            world.look()
            learner = world.learner
            applied = [reader.applied for reader in world.readers]
            recovery = recovered(
                since, learner.stored, applied, newcomer.applied, quiet=learner.quiet
            )
            if recovery is not None or time.monotonic() - since > _GIVEN_UP_S:
                break
            time.sleep(_TICK_S)
    finally:
        newcomer.close()
        probe.close()
    for text in newcomer.violations:
        world.violation(2, newcomer.name, text)
    if recovery is not None:
        intervals = [*world.stalls(), *probe.slow]
        disturbed = last_disturbance(since, recovery.seconds, intervals)
        recovery = replace(recovery, disturbed=disturbed)
    if too_late(recovery, grace_s):
        found = f"no recovery: {_state(world, newcomer)}" if recovery is None else str(recovery)
        world.violation(5, "all", f"not as before within {RECOVERED_S + grace_s:g} s: {found}")
    return recovery


def _state(world: World, newcomer: Newcomer) -> str:
    last = {r.name: str(r.applied[-1][1]) if r.applied else None for r in world.readers}
    stored = str(world.learner.stored[-1][1]) if world.learner.stored else None
    new = str(newcomer.applied[-1][1]) if newcomer.applied else None
    return f"{world.learner.name} stored {stored}, held are {last}, {newcomer.name} holds {new}"
