"""Confidence intervals over seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scipy import stats

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean with its confidence interval; of a single value, without: `low` and `high` are NaN."""

    mean: float
    low: float
    high: float
    n: int

    def excludes(self, value: float) -> bool:
        """Whether the interval is all above or all below a value."""
        return self.low > value or self.high < value


def of_mean(values: Sequence[float]) -> Interval:
    """Of the mean of independent runs, by Student's t: mean ± t(n - 1) · s / √n.

    https://www.itl.nist.gov/div898/handbook/eda/section3/eda352.htm

    Raises:
        ValueError: If there are no values.
    """
    if not values:
        raise ValueError("there is no interval of no runs")
    mean = statistics.fmean(values)
    n = len(values)
    if n == 1:
        return Interval(mean, math.nan, math.nan, 1)
    t = float(stats.t.ppf((1 + CONFIDENCE) / 2, n - 1))
    half = t * statistics.stdev(values) / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, n)


def of_ratio(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """Of the ratio of runs that belong together in pairs: the geometric mean of the pairs' ratios.

    Of logarithms, so that the ratio the other way round has the inverse interval.

    Raises:
        ValueError: If the numbers of runs differ, or there are none.
    """
    logarithms = [math.log(a / b) for a, b in zip(ours, theirs, strict=True)]
    interval = of_mean(logarithms)
    return Interval(
        math.exp(interval.mean), math.exp(interval.low), math.exp(interval.high), interval.n
    )
