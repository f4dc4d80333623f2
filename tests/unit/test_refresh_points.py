"""Where weights may change within a sample(): the callbacks of RLlib's EnvRunners, without Ray."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("ray")

from redis_state_sync.rllib.refresh_points import RefreshPoints
from redis_state_sync.settings import Settings
from tests.unit.states import Clock


class Runner:
    """Makes the callbacks that a `sample()` makes, and notes after which steps it refreshed."""

    def __init__(self, num_envs: int = 1, *, found: bool = False, **settings: Any) -> None:
        self.clock = Clock()
        self.points = RefreshPoints(Settings(**settings), self.clock)
        self.num_envs = num_envs
        self.found = found
        self.cost = 0.0
        self.step_s = 1.0
        self.refreshed: list[int] = []
        self.now = 0
        self.calls: list[tuple[str, int]] = []

    def attempt(self) -> bool:
        self.clock.now += self.cost
        self.refreshed.append(self.now)
        return self.found

    def callback(self, which: str, index: int) -> None:
        self.calls.append((which, index))
        if self.points.passed(which, index, self.num_envs):
            # All envs have been stepped: the last of them was just told of.
            assert self.calls[-1] in [
                ("on_episode_step", self.num_envs - 1),
                ("on_episode_start", self.num_envs - 1),
            ]
            self.points.refresh(self.attempt)

    def reset(self) -> None:
        for index in range(self.num_envs):
            self.callback("on_episode_created", index)
        for index in range(self.num_envs):
            self.callback("on_episode_start", index)

    def step(self, *, starts: tuple[int, ...] = (), ends: tuple[int, ...] = ()) -> None:
        """One step of all envs. Those in `ends` end, and start with the next step."""
        self.now += 1
        self.clock.now += self.step_s
        for index in range(self.num_envs):
            self.callback("on_episode_start" if index in starts else "on_episode_step", index)
            if index in ends:
                self.callback("on_episode_end", index)
                self.callback("on_episode_created", index)


@pytest.mark.parametrize("num_envs", [1, 3])
def test_between_any_two_steps(num_envs: int) -> None:
    """Once for all envs together, after each step of all of them, whatever else is called."""
    runner = Runner(num_envs, refresh="steps")
    runner.reset()
    for number in range(1, 10):
        runner.step(ends=(0, num_envs - 1) if number == 4 else ())
    assert runner.refreshed == [0, *range(1, 10)]
    assert runner.points.count == 10


@pytest.mark.parametrize("found", [False, True])
def test_every_so_many_steps(found: bool) -> None:
    """At most once in so many steps, whether something was found or not; also across samples."""
    runner = Runner(3, refresh="steps", refresh_every_steps=4, found=found)
    for _ in range(13):
        runner.step()
    assert runner.refreshed == [4, 8, 12]


@pytest.mark.parametrize("found", [False, True])
@pytest.mark.parametrize("prefetch", [False, True])
def test_every_so_many_seconds(found: bool, prefetch: bool) -> None:
    """So many seconds lie between the end of one refresh and the next, whatever one costs."""
    runner = Runner(
        refresh="steps", refresh_every_s=2.5, refresh_every_steps=2, prefetch=prefetch, found=found
    )
    runner.cost = 0.25
    for _ in range(12):
        runner.step()
    assert runner.refreshed == [2, 5, 8, 11]


@pytest.mark.parametrize("prefetch", [False, True])
def test_what_is_asked_in_vain_costs_less_than_a_hundredth(prefetch: bool) -> None:
    """Without an interval there is a refresh as often as that is cheap."""
    runner = Runner(refresh="steps", prefetch=prefetch)
    runner.step_s, runner.cost = 0.001, 0.0005
    began = runner.clock.now
    for _ in range(5000):
        runner.step()
    tries = len(runner.refreshed)
    assert tries >= 70
    assert tries * runner.cost <= 0.0075 * (runner.clock.now - began) + runner.cost


def test_what_is_found_is_not_a_cost() -> None:
    """Applying something takes its time, and delays nothing: there may be more."""
    runner = Runner(refresh="steps", prefetch=False, found=True)
    runner.cost = 5.0
    for _ in range(5):
        runner.step()
    assert runner.refreshed == [1, 2, 3, 4, 5]


def test_what_was_prefetched_is_looked_at_in_each_step() -> None:
    """With prefetching a look is no poll: it costs so little that no step has to be left out."""
    runner = Runner(refresh="steps", prefetch=True)
    runner.cost = 1e-6
    for _ in range(5):
        runner.step()
    assert runner.refreshed == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("num_envs", [1, 3])
def test_where_episodes_start(num_envs: int) -> None:
    """In episode mode only after a step in which an episode started in one of the envs."""
    runner = Runner(num_envs, refresh="episode")
    runner.reset()
    for number in range(1, 12):
        runner.step(starts=(0,) if number in (4, 8) else (), ends=(0,) if number in (3, 7) else ())
    assert runner.refreshed == [0, 4, 8]


def test_an_episode_that_starts_too_early_is_let_pass() -> None:
    """Where an interval is not over at a start, weights stay until a later start: not mid-way."""
    for interval in ({"refresh_every_steps": 5}, {"refresh_every_s": 5.5}):
        runner = Runner(refresh="episode", **interval)
        runner.points.refresh(runner.attempt)
        starts = (2, 4, 9, 16)
        for number in range(1, 20):
            runner.step(starts=(0,) if number in starts else ())
        assert runner.refreshed == [0, 9, 16]


def test_an_early_end_refreshes_nothing() -> None:
    """`sample(num_episodes=...)` stops in the middle of the envs: there is no point, then."""
    runner = Runner(3, refresh="episode")
    runner.callback("on_episode_start", 0)
    runner.callback("on_episode_step", 1)
    runner.callback("on_episode_end", 1)
    runner.callback("on_episode_created", 1)
    assert runner.refreshed == []
    runner.reset()
    assert runner.refreshed == [0]


def test_a_refresh_that_fails_is_tried_at_the_next_point() -> None:
    """An error reaches the caller of `sample()`, and leaves the points usable."""
    runner = Runner(refresh="steps")

    def broken() -> bool:
        raise ZeroDivisionError

    assert runner.points.passed("on_episode_step", 0, 1)
    with pytest.raises(ZeroDivisionError):
        runner.points.refresh(broken)
    runner.step()
    assert runner.refreshed == [1]
