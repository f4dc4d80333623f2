"""Where an EnvRunner may change its weights within a `sample()`, and when it is time to.

RLlib's EnvRunners (Ray 2.60: `SingleAgentEnvRunner._sample`, and that of `MultiAgentEnvRunner`)
record a step of all their envs, with the number of the weights that acted, and then call
``on_episode_step`` for each env; only then comes the next forward pass. After the last env's call
the weights may change: those that act, the stamp `WEIGHTS_SEQ_NO` and ``action_logp`` of each step
are then of one version.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from redis_state_sync.pace import Pace
from redis_state_sync.settings import Settings

_START, _STEP = "on_episode_start", "on_episode_step"


class RefreshPoints:
    """Finds the points among the callbacks that an EnvRunner makes.

    Args:
        settings: See `refresh`, `refresh_every_steps`, `refresh_every_s`, `prefetch`.
        clock: Seconds; replaceable in tests.
    """

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.perf_counter) -> None:
        self._at_starts_only = settings.refresh == "episode"
        self._every_steps = settings.refresh_every_steps
        self._pace = Pace(settings.refresh_every_s)
        self._clock = clock
        self._steps = 0
        self._started = False
        self._not_before = 0.0
        self._missed = False
        self.count = 0
        """How many steps were seen."""

    def passed(self, which: str, env_index: int, num_envs: int) -> bool:
        """Whether to refresh now.

        Args:
            which: Name of the callback that was made.
            env_index: For which of the envs.
            num_envs: How many there are.
        """
        if which == _START:
            self._started = True
        elif which != _STEP:
            return False
        if env_index + 1 < num_envs:
            return False
        self.count += 1
        self._steps += 1
        # One that comes too early is let pass: later on its episode is in the middle.
        started, self._started = self._started, False
        if self._steps < self._every_steps or (self._at_starts_only and not started):
            return False
        return self._clock() >= self._not_before

    def are_missing(self, samples: Any) -> bool:
        """Whether an EnvRunner sampled without making a callback. True once, to warn of it."""
        missing = bool(samples) and not self.count and not self._missed
        self._missed |= missing
        return missing

    def refresh(self, attempt: Callable[[], bool]) -> None:
        """Refreshes, and decides when to do it again.

        Args:
            attempt: Refreshes, and returns whether there was something newer.
        """
        self._steps = 0
        began = self._clock()
        found = attempt()
        ended = self._clock()
        if not found:
            self._pace.spent(ended - began)
        self._not_before = ended + self._pace.pause
