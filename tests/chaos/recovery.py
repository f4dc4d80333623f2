"""Invariant 5: how long it takes after a fault until all is as it was."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from redis_state_sync import Version
from tests.chaos.bounds import RECOVERED_S
from tests.chaos.newcomer import Newcomer
from tests.chaos.world import World

# For how long a recovery that comes too late is waited for, to say how late it was.
_GIVEN_UP_S = 20.0
_TICK_S = 0.01

Times = Sequence[tuple[float, Version]]


@dataclass(frozen=True)
class Recovery:
    """Seconds from the end of a fault.

    Args:
        learner: Until a version was stored; None: it was not asked to publish.
        readers: Until the last reader held the newest version.
        newcomer: Until a reader without anything held it.
        stalled: For how much of it the machine stood still.
    """

    learner: float | None
    readers: float
    newcomer: float
    stalled: float

    @property
    def seconds(self) -> float:
        """Until all was as before, standing still left out."""
        return max(0.0, max(self.learner or 0.0, self.readers, self.newcomer) - self.stalled)


def recover(world: World, since: float, grace_s: float = 0.0) -> Recovery | None:
    """Waits until every reader, and one that has nothing yet, holds the newest version.

    Args:
        world: The processes.
        since: When the fault ended.
        grace_s: What the fault leaves behind may take so much longer.

    Returns:
        How long it took, or None if it did not happen. It is a violation if that was too long.
    """
    newcomer = world.newcomer()
    try:
        while True:
            world.look()
            recovery = _recovery(world, newcomer, since)
            now = time.monotonic()
            stalled = world.stalled(since, now)
            if recovery is not None or now - since - stalled > _GIVEN_UP_S:
                break
            time.sleep(_TICK_S)
    finally:
        newcomer.close()
    for text in newcomer.violations:
        world.violation(2, newcomer.name, text)
    if recovery is None:
        world.violation(
            5, "all", f"no recovery within {_GIVEN_UP_S:g} s: {_state(world, newcomer)}"
        )
    elif recovery.seconds > RECOVERED_S + grace_s:
        world.violation(5, "all", f"recovery within {RECOVERED_S + grace_s:g} s: {recovery}")
    return recovery


def _recovery(world: World, newcomer: Newcomer, since: float) -> Recovery | None:
    learner = world.learner
    stored = None
    if learner.quiet:
        # Nothing has to be published; but what it published last has to be there.
        wanted = learner.stored[-1][1]
    else:
        found = next(((t, version) for t, version in learner.stored if t > since), None)
        if found is None:
            return None
        stored, wanted = found[0] - since, found[1]
    new = _first(newcomer.applied, wanted)
    held = [_first(reader.applied, wanted) for reader in world.readers]
    if new is None or None in held:
        return None
    readers = max(0.0, *(t - since for t in held if t is not None))
    return Recovery(stored, readers, new - since, world.stalled(since, time.monotonic()))


def _first(applied: Times, wanted: Version) -> float | None:
    """When this version or a newer one was applied first."""
    found = None
    for t, version in reversed(applied):
        if version < wanted:
            break
        found = t
    return found


def _state(world: World, newcomer: Newcomer) -> str:
    last = {r.name: str(r.applied[-1][1]) if r.applied else None for r in world.readers}
    stored = str(world.learner.stored[-1][1]) if world.learner.stored else None
    new = str(newcomer.applied[-1][1]) if newcomer.applied else None
    return f"{world.learner.name} stored {stored}, held are {last}, {newcomer.name} holds {new}"
