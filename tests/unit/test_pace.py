"""What tries cost, and the pauses after them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_state_sync.pace import SHARE, Pace

seconds = st.floats(0.0, 10.0)


@given(costs=st.lists(seconds, min_size=1, max_size=300))
def test_all_tries_together_cost_their_share(costs: list[float]) -> None:
    """Of all the time, tries take one hundredth, but for what the next few pauses still owe."""
    pace, elapsed = Pace(), 0.0
    for cost in costs:
        pace.spent(cost)
        elapsed += cost + pace.pause
    owed = 9 * pace.pause * SHARE / (1 - SHARE)
    assert sum(costs) <= SHARE * elapsed + owed + 1e-9


@given(cost=st.floats(1e-7, 1.0), tries=st.integers(1, 50))
def test_equal_tries_cost_exactly_their_share(cost: float, tries: int) -> None:
    """Nor do they cost less than that: newer versions would come later for nothing."""
    pace, elapsed = Pace(), 0.0
    for _ in range(tries):
        pace.spent(cost)
        elapsed += cost + pace.pause
    assert cost * tries == pytest.approx(SHARE * elapsed)


def test_one_disturbed_try_does_not_stop_all() -> None:
    """A single measurement counts for a tenth, and less with each try that follows."""
    pace = Pace()
    pace.spent(0.001)
    pace.spent(1.001)
    first = pace.pause
    assert first == pytest.approx(0.101 * (1 / SHARE - 1))
    for _ in range(50):
        pace.spent(0.001)
    assert pace.pause < first / 50


@given(costs=st.lists(seconds, max_size=20), every=st.floats(1e-3, 10.0))
def test_a_given_interval_is_kept(costs: list[float], every: float) -> None:
    """Whatever tries cost, neither the cost nor a least pause changes what was asked for."""
    pace = Pace(every, least_s=1.0)
    for cost in costs:
        pace.spent(cost)
    assert pace.pause == every


@given(costs=st.lists(seconds, max_size=20), least=st.floats(1e-3, 10.0))
def test_a_least_pause_is_kept(costs: list[float], least: float) -> None:
    """No pause is shorter, also before anything is known; no pause is longer for it."""
    pace, free = Pace(least_s=least), Pace()
    assert (pace.pause, free.pause) == (least, 0.0)
    for cost in costs:
        pace.spent(cost)
        free.spent(cost)
    assert pace.pause == max(least, free.pause)
