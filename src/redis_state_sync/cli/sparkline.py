"""A row of numbers as small bars."""

from __future__ import annotations

from collections.abc import Sequence

_BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float | None]) -> str:
    """One character for each number, from nothing to the largest; a gap where there is none."""
    top = max((value for value in values if value is not None), default=0.0)
    return "".join(" " if value is None else _bar(value, top) for value in values)


def _bar(value: float, top: float) -> str:
    if top <= 0:
        return _BARS[0]
    return _BARS[round(value / top * (len(_BARS) - 1))]
