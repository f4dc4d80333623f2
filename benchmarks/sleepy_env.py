"""An environment that sleeps instead of computing; observations say when they were made."""

from __future__ import annotations

import time
from typing import Any

import gymnasium as gym
import numpy as np

# Observations are float32: of seconds below this, it keeps 0.06 ms.
CLOCK_PERIOD_S = 1000.0
MAX_RUNNERS = 64
# Raised when times change: runs of before are then others.
VERSION = 2
EPISODE_STEPS = 250
TIME, RUNNER, OWN = 0, 1, 2
"""Places in an observation: `time.monotonic()` modulo the period, the EnvRunner's index, and the
seconds between the step before and this one, which were the EnvRunner's own."""
_FEATURES = 8
_SLOWER = 0.2
# So many steps late an EnvRunner may be.
_MADE_UP_FOR = 50


class SleepyEnv(gym.Env[Any, Any]):
    """Each step ends at its time; what is to be done is to say a number's sign.

    A step sleeps until it is due, by a schedule that goes on whatever its EnvRunner does between
    two steps: as long as EnvRunners keep up, env steps per second, and so updates per second, are
    the same for all arms. What an EnvRunner takes for itself is in the observations.

    Times vary by half from step to step, an EnvRunner begins late by up to one fragment, and some
    EnvRunners are slower than others by up to a fifth: in the course of a run, fragments end in
    ever other orders, close together and far apart. All of it is the same in runs of one seed.

    Args:
        config: `step_s`: mean seconds of a step; `fragment_s`: the latest begin; `runners`: how
            many EnvRunners there are; `seed`. With RLlib's `worker_index`.
    """

    def __init__(self, config: Any) -> None:
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (_FEATURES,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self._runner = int(getattr(config, "worker_index", 0))
        self._step_s = config["step_s"] * pace(self._runner, config["runners"])
        self._random = np.random.default_rng((config["seed"], self._runner))
        # The local EnvRunner, index 0, makes one too and never steps it.
        self._late_s = self._random.uniform(0, config["fragment_s"]) if self._runner else 0.0
        self._due: float | None = None
        self._returned = 0.0
        self._steps = 0
        self._right = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begins an episode, at once but for the first."""
        super().reset(seed=seed)
        if self._due is None:
            time.sleep(self._late_s)
            self._due = self._returned = time.monotonic()
        self._steps = 0
        return self._observe(time.monotonic() - self._returned), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Sleeps."""
        assert self._due is not None
        entered = time.monotonic()
        # What is longer ago is lost: else a stall would be followed by a sprint as long.
        self._due = max(self._due, entered - _MADE_UP_FOR * self._step_s)
        self._due += self._step_s * self._random.uniform(0.5, 1.5)
        time.sleep(max(0.0, self._due - entered))
        reward = float(action == self._right)
        self._steps += 1
        observation = self._observe(entered - self._returned)
        return observation, reward, False, self._steps >= EPISODE_STEPS, {}

    def _observe(self, own_s: float) -> Any:
        observation = self._random.standard_normal(_FEATURES).astype(np.float32)
        self._right = int(observation[-1] > 0)
        observation[RUNNER] = self._runner / MAX_RUNNERS
        observation[OWN] = own_s
        self._returned = time.monotonic()
        observation[TIME] = (self._returned % CLOCK_PERIOD_S) / CLOCK_PERIOD_S
        return observation


def pace(runner: int, runners: int) -> float:
    """How much longer one EnvRunner's steps take than they do on average.

    Args:
        runner: From 1 on.
        runners: How many there are.
    """
    return 1 + _SLOWER * ((runner - 0.5) / runners - 0.5)
