"""The lag of a train batch: stamps, a mask and times in, numbers out."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("ray")

from redis_state_sync.rllib.staleness import (
    REMEMBERED_UPDATES,
    MadeAt,
    Spread,
    UpdateLag,
    lag_of,
    summary,
)


def made(numbers: range, *, seconds_each: float = 10.0) -> MadeAt:
    """A learner that made each number, beginning at its first one, so many seconds later."""
    times = MadeAt(numbers[0], numbers[0] * seconds_each)
    for number in numbers[1:]:
        times.note(number, number * seconds_each)
    return times


def nearest_rank(values: list[float], tenths: int) -> float:
    return sorted(values)[math.ceil(len(values) * tenths / 10) - 1]


@given(
    st.lists(st.integers(-1, 60), min_size=1, max_size=80),
    st.integers(20, 40),
    st.integers(1, 19),
)
def test_against_one_step_at_a_time(stamps: list[int], number: int, first: int) -> None:
    """Each number is what it is by its definition, over the steps that count."""
    made_at = made(range(first, number))
    now = number * 10.0
    lag = lag_of(np.array(stamps), number, made_at, now)
    real = [s for s in stamps if s >= 0]
    if not real:
        assert lag is None
        return
    assert lag is not None
    updates = [float(number - s) for s in real if s < number]
    seconds = [now - 10.0 * s for s in real if max(1, first) <= s < number]
    assert lag.steps == len(updates)
    assert lag.unknown == len(real) - len(seconds)
    for found, expected in ((lag.updates, updates), (lag.seconds, seconds)):
        if not expected:
            assert all(map(math.isnan, found))
            continue
        low, middle, high = (nearest_rank(expected, tenths) for tenths in (1, 5, 9))
        assert found == pytest.approx(
            (sum(expected) / len(expected), middle, high, max(expected), high - low)
        )
        assert min(found) >= 0


def test_one_is_the_least() -> None:
    """Weights as new as they can be lag by the update that is in progress, and by no time."""
    lag = lag_of(np.full((2, 3), 7), 8, made(range(1, 8)), 70.0)
    assert lag == UpdateLag(Spread(1, 1, 1, 1, 0), Spread(0, 0, 0, 0, 0), steps=6, unknown=0)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float32])
def test_any_number_type(dtype: Any) -> None:
    """Stamps count by their value, whatever the connectors made of their type."""
    lag = lag_of(np.array([5, 5, 4], dtype), 6, made(range(1, 6)), 60.0)
    assert lag is not None
    assert (lag.updates.mean, lag.seconds.mean) == pytest.approx((4 / 3, 40 / 3))


def test_what_was_forgotten_has_no_age() -> None:
    """A learner remembers so many updates and no more, and takes no other's time for a number's."""
    newest = 2 * REMEMBERED_UPDATES + 3
    made_at = made(range(1, newest + 1), seconds_each=1.0)
    oldest = newest - REMEMBERED_UPDATES + 1
    numbers = np.array([0, 1, oldest - 1, oldest, newest, newest + 1])
    ages = made_at.ages(numbers, float(newest))
    assert np.array_equal(ages, [*[np.nan] * 3, newest - oldest, 0, np.nan], equal_nan=True)


@pytest.mark.parametrize("restored", [3, 40])
def test_a_restored_learner_begins_with_its_own_number(restored: int) -> None:
    """What numbers meant before a restore is forgotten, also those that it will make again."""
    made_at = made(range(1, 11))
    made_at.restart(restored, 200.0)
    made_at.note(restored + 1, 210.0)
    stamps = np.array([1, restored - 1, restored, restored + 1, restored + 7])
    lag = lag_of(stamps, restored + 2, made_at, 215.0)
    assert lag is not None
    assert (lag.steps, lag.unknown) == (4, 3)
    assert (lag.seconds.max, lag.seconds.mean) == (15.0, 10.0)
    assert lag.updates.max == restored + 1


def test_a_number_that_does_not_follow_begins_anew() -> None:
    """A learner whose number jumps by itself has other weights than those that were noted."""
    made_at = made(range(1, 11))
    made_at.note(30, 300.0)
    assert np.array_equal(
        made_at.ages(np.array([9, 10, 29, 30]), 301.0), [np.nan] * 3 + [1.0], equal_nan=True
    )


def test_only_numbers_of_another_history() -> None:
    """A batch from before a restore has no lag, and its steps are counted."""
    lag = lag_of(np.array([50, 51]), 10, made(range(1, 10)), 100.0)
    assert lag is not None
    assert (lag.steps, lag.unknown) == (0, 2)
    assert summary([lag]) == {"num_updates": 1, "num_steps": 0, "num_steps_of_unknown_age": 2}


numbers = st.floats(0, 1e6)
spreads = st.builds(Spread, numbers, numbers, numbers, numbers, numbers)
lags = st.builds(UpdateLag, spreads, spreads, st.integers(1, 99), st.integers(0, 99))


@given(st.lists(lags, min_size=1, max_size=20))
def test_summary(several: list[UpdateLag]) -> None:
    """A result has exact means over its updates, the largest maximum, and totals."""
    travelled = [UpdateLag.from_flat(lag.flat()) for lag in several]
    assert travelled == several
    found = summary(travelled)
    for name in ("updates", "seconds"):
        for field in Spread._fields:
            values = [getattr(getattr(lag, name), field) for lag in several]
            expected = max(values) if field == "max" else sum(values) / len(values)
            assert found.pop(f"lag_{name}_{field}") == pytest.approx(expected)
    assert found == {
        "num_updates": len(several),
        "num_steps": sum(lag.steps for lag in several),
        "num_steps_of_unknown_age": sum(lag.unknown for lag in several),
    }


def test_summary_of_unknown_ages() -> None:
    """Updates whose ages are unknown do not enter the means of those that are known."""
    stamps = np.array([3, 3])
    known = lag_of(stamps, 6, made(range(1, 6)), 60.0)
    unknown = lag_of(stamps, 6, made(range(5, 6)), 60.0)
    assert known is not None
    assert unknown is not None
    found = summary([known, unknown])
    assert (found["lag_seconds_mean"], found["lag_updates_mean"]) == (30.0, 3.0)
    assert found["num_steps_of_unknown_age"] == 2
    assert "lag_seconds_mean" not in summary([unknown])
