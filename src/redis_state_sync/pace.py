"""How often something may be tried, so that trying in vain costs a known share of the time."""

from __future__ import annotations

# Of a thread's time. What is promised is a hundredth: some of it is for what is not measured.
SHARE = 0.0075
# How much a single measurement counts: one may have been disturbed by other processes. The mean
# that it makes spends, over many of them, just what they cost together.
_WEIGHT = 0.1


class Pace:
    """Turns what a try costs into a pause before the next one.

    Args:
        every_s: Pause for so many seconds, whatever a try costs. None: for as long as keeps the
            cost below one hundredth of the time.
        least_s: Least pause, in the latter case.
    """

    def __init__(self, every_s: float | None = None, *, least_s: float = 0.0) -> None:
        self._every_s = every_s
        self._least_s = least_s
        self._cost: float | None = None

    def spent(self, seconds: float) -> None:
        """A try in vain cost so much."""
        self._cost = (
            seconds if self._cost is None else self._cost + _WEIGHT * (seconds - self._cost)
        )

    @property
    def pause(self) -> float:
        """Seconds to wait before the next try."""
        if self._every_s is not None:
            return self._every_s
        return max(self._least_s, (self._cost or 0.0) * (1 / SHARE - 1))
