"""Runs a grid: what is finished is skipped, what fails is said and tried once more."""

from __future__ import annotations

import contextlib
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.run_store import RunKey, RunStore

_ATTEMPTS = 2


class RunHungError(Exception):
    """A run did not end in time."""


@dataclass
class Tally:
    """What became of the runs of a plan."""

    made: list[RunKey] = field(default_factory=list)
    there: list[RunKey] = field(default_factory=list)
    failed: list[RunKey] = field(default_factory=list)


def rotated(arms: Sequence[str], turn: int) -> list[str]:
    """The arms in their order, another one first in each turn."""
    shift = turn % len(arms)
    return [*arms[shift:], *arms[:shift]]


def go(
    plan: Sequence[RunKey],
    execute: Callable[[RunKey], dict[str, Any]],
    store: RunStore,
    say: Callable[[str], None],
    recover: Callable[[], None] = lambda: None,
) -> Tally:
    """Makes the runs that are missing, in order.

    Args:
        plan: All runs.
        execute: Makes one and returns what was measured.
        store: Where finished ones are, and failures are noted.
        say: Told of each run.
        recover: Called after a failure, before anything else is run.

    Returns:
        Which were made, were there before, and failed twice.
    """
    tally = Tally()
    for number, key in enumerate(plan, 1):
        if store.load(key) is not None:
            tally.there.append(key)
            continue
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                run = execute(key)
            except Exception:
                error = traceback.format_exc()
                store.note_failure(key, error)
                last = error.strip().splitlines()[-1]
                say(f"{key}: failed, attempt {attempt} of {_ATTEMPTS}: {last}")
                recover()
            else:
                store.save(key, run)
                tally.made.append(key)
                say(f"{number}/{len(plan)} {key}")
                break
        else:
            tally.failed.append(key)
    return tally


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raises in the main thread, whatever it waits for, if the block takes longer.

    Raises:
        RunHungError: Then.
    """

    def raise_hung(*_: Any) -> None:
        raise RunHungError(f"not ended after {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, raise_hung)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
