"""How far behind the learner the weights were that a train batch was sampled with.

Numbers in, numbers out: neither Ray nor torch, nor a clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

# Of how many updates a learner remembers when they were made. A lag of as many is no training.
REMEMBERED_UPDATES = 4096


class MadeAt:
    """When a learner made the weights with a number, for the newest `REMEMBERED_UPDATES` of them.

    Args:
        number: `WEIGHTS_SEQ_NO` of the weights that it has.
        now: Monotonic seconds.
    """

    def __init__(self, number: int, now: float) -> None:
        self._times = np.zeros(REMEMBERED_UPDATES)
        self.restart(number, now)

    def restart(self, number: int, now: float) -> None:
        """From here on it has these weights: whatever other numbers meant is forgotten."""
        self._oldest = self.newest = number
        self._times[number % REMEMBERED_UPDATES] = now

    def note(self, number: int, now: float) -> None:
        """It made the weights with this number."""
        if number != self.newest + 1:
            self.restart(number, now)
            return
        self.newest = number
        self._oldest = max(self._oldest, number - REMEMBERED_UPDATES + 1)
        self._times[number % REMEMBERED_UPDATES] = now

    def ages(self, numbers: npt.NDArray[np.int64], now: float) -> npt.NDArray[np.float64]:
        """Seconds since it made the weights with these numbers; NaN where that is not known.

        Number 0 is not known: an EnvRunner that never got any weights stamps it, too.
        """
        known = (numbers >= max(1, self._oldest)) & (numbers <= self.newest)
        return np.where(known, now - self._times[numbers % REMEMBERED_UPDATES], np.nan)


class Spread(NamedTuple):
    """How a quantity is spread over the steps of one batch; all NaN if there are none.

    Percentiles are by nearest rank: values that steps really have. `spread` is the 90th percentile
    minus the 10th.
    """

    mean: float
    p50: float
    p90: float
    max: float
    spread: float


class UpdateLag(NamedTuple):
    """The lag of the batch of one update.

    Attributes:
        updates: In gradient updates, as Ray counts them: the update in progress counts, so that 1
            is the least, for weights as new as they can be.
        seconds: Since the learner made the weights, until the update begins.
        steps: Steps that `updates` is of.
        unknown: Steps that are missing in `seconds`, and those with numbers that the learner never
            made, from before it was restored, which are missing in `updates`, too.
    """

    updates: Spread
    seconds: Spread
    steps: int
    unknown: int

    def flat(self) -> tuple[float, ...]:
        """As a plain tuple, which travels and is stored without this class."""
        return (*self.updates, *self.seconds, self.steps, self.unknown)

    @classmethod
    def from_flat(cls, numbers: Sequence[float]) -> UpdateLag:
        """The inverse of `flat`."""
        n = len(Spread._fields)
        steps, unknown = numbers[2 * n :]
        return cls(Spread(*numbers[:n]), Spread(*numbers[n : 2 * n]), int(steps), int(unknown))


def lag_of(stamps: npt.NDArray[Any], number: int, made_at: MadeAt, now: float) -> UpdateLag | None:
    """The lag of a batch.

    Args:
        stamps: `WEIGHTS_SEQ_NO` of each step, of any shape; negative: not a step to be learned
            from.
        number: `WEIGHTS_SEQ_NO` of the learner, already counted up for the update that begins.
        made_at: When the learner made which weights.
        now: Monotonic seconds.

    Returns:
        None if no step is to be learned from.
    """
    values, counts = np.unique(stamps, return_counts=True)
    # The newest first, so that lags and ages ascend.
    values, counts = values[::-1].astype(np.int64), counts[::-1]
    real = values >= 0
    values, counts = values[real], counts[real]
    if not len(values):
        return None
    # A learner that was restored goes on below what EnvRunners have seen.
    ours = values < number
    future = int(counts[~ours].sum())
    values, counts = values[ours], counts[ours]
    ages = made_at.ages(values, now)
    known = ~np.isnan(ages)
    steps = int(counts.sum())
    return UpdateLag(
        _spread((number - values).tolist(), counts.tolist()),
        _spread(ages[known].tolist(), counts[known].tolist()),
        steps,
        future + steps - int(counts[known].sum()),
    )


def _spread(values: list[float], counts: list[int]) -> Spread:
    """Of values in ascending order, each of so many steps."""
    total = sum(counts)
    if not total:
        return Spread(*[math.nan] * len(Spread._fields))
    mean = math.fsum(v * c for v, c in zip(values, counts, strict=True)) / total
    return Spread(
        mean,
        _rank(values, counts, total, 5),
        _rank(values, counts, total, 9),
        float(values[-1]),
        _rank(values, counts, total, 9) - _rank(values, counts, total, 1),
    )


def _rank(values: list[float], counts: list[int], total: int, tenths: int) -> float:
    """The smallest value that at least so many tenths of all steps do not exceed."""
    left = -(-total * tenths // 10)
    for value, count in zip(values, counts, strict=True):
        left -= count
        if left <= 0:
            return float(value)
    raise AssertionError("counts do not add up to the total")


def summary(lags: Iterable[UpdateLag]) -> dict[str, float]:
    """What a result says of the updates that it comprises.

    Returns:
        For ``lag_updates_`` and ``lag_seconds_``: `mean`, `p50`, `p90` and `spread`, each the mean
        over the updates, and `max`, the largest of all; absent where nothing is known. And
        `num_updates`, `num_steps`, `num_steps_of_unknown_age`.
    """
    lags = list(lags)
    found: dict[str, float] = {}
    for name, spreads in (
        ("lag_updates", [lag.updates for lag in lags if lag.steps]),
        ("lag_seconds", [lag.seconds for lag in lags if not math.isnan(lag.seconds.mean)]),
    ):
        if spreads:
            for field in Spread._fields:
                values = [getattr(spread, field) for spread in spreads]
                largest = field == "max"
                found[f"{name}_{field}"] = (
                    max(values) if largest else math.fsum(values) / len(values)
                )
    found["num_updates"] = len(lags)
    found["num_steps"] = sum(lag.steps for lag in lags)
    found["num_steps_of_unknown_age"] = sum(lag.unknown for lag in lags)
    return found
