"""What was measured: one number for each arm and round, and what may be said of it."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Spread:
    """A median over rounds, with the 10th and 90th percentile."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one value."""
        return cls(statistics.median(values), percentile(values, 10), percentile(values, 90))

    def __str__(self) -> str:
        if self.low == self.high:
            return short(self.median)  # Of a single value.
        return f"{short(self.median)} ({short(self.low)}–{short(self.high)})"


@dataclass
class Measure:
    """One row of a table.

    Args:
        metric: What was measured; rows of one metric make one table.
        case: Under which circumstances, e.g. ``"16 MB"``.
        unit: Of the values.
        more_is_better: A rate, say, and not a time.
        values: Arm -> one value for each round, in the order of the rounds.
    """

    metric: str
    case: str
    unit: str
    more_is_better: bool = False
    values: dict[str, list[float]] = field(default_factory=dict)

    def add(self, arm: str, value: float) -> None:
        """Takes note of one round of one arm."""
        self.values.setdefault(arm, []).append(float(value))

    def spread(self, arm: str) -> Spread:
        """Of one arm, over all rounds."""
        return Spread.of(self.values[arm])

    def ratio(self, arm: str, baseline: str) -> Spread:
        """By how much `arm` is better than `baseline`: 2 means half the time, or twice the rate.

        Of the rounds' own ratios: within one round, both arms met the same machine.
        """
        pairs = zip(self.values[arm], self.values[baseline], strict=True)
        if self.more_is_better:
            return Spread.of([ours / theirs for ours, theirs in pairs])
        return Spread.of([theirs / ours for ours, theirs in pairs])

    def asdict(self) -> dict[str, object]:
        """Plain values, for JSON; `Measure(**values)` is the way back."""
        return dataclasses.asdict(self)


def percentile(values: Sequence[float], percent: float) -> float:
    """The linearly interpolated percentile, as numpy's default."""
    ordered = sorted(values)
    at = (len(ordered) - 1) * percent / 100
    below = int(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (at - below)


def short(value: float) -> str:
    """Three significant digits, and no exponent."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    digits = 0
    while abs(value) * 10**digits < 100 and digits < 6:
        digits += 1
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
