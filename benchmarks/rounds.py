"""Rounds: every arm has its turn in each, and the first two do not count."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Protocol

from benchmarks.measures import Measure

# The first touches fresh memory, and so does the second where buffers are swapped.
WARM_UP = 2


class Watch(Protocol):
    """Told how far a section is."""

    def __call__(self, what: str, done: int, of: int) -> None:
        """`done` rounds of `of`."""
        ...


class Turns:
    """Interleaves arms.

    Args:
        arms: Who has turns.
        rounds: How many rounds count.
    """

    def __init__(self, arms: Sequence[str], rounds: int) -> None:
        self._arms = list(arms)
        self._rounds = rounds

    def run(
        self,
        turn: Callable[[str], None],
        watch: Watch,
        what: str,
        measures: Sequence[Measure],
        *,
        before: Callable[[], None] | None = None,
    ) -> None:
        """Lets each arm have its turns.

        Args:
            turn: Measures one arm once and adds to `measures`.
            watch: Told of each round.
            what: What to tell it.
            measures: Emptied after the rounds that warm everything up.
            before: Called before each round: makes a new state, say.
        """
        gc.collect()
        for number in range(self._rounds + WARM_UP):
            watch(what, number, self._rounds + WARM_UP)
            if number == WARM_UP:
                for measure in measures:
                    measure.values.clear()
            if before is not None:
                before()
            # Which one goes first changes: nobody always meets what the same other one left.
            shift = number % len(self._arms)
            for arm in self._arms[shift:] + self._arms[:shift]:
                turn(arm)
