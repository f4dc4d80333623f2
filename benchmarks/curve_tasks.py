"""What is learned for the learning curves, and when it counts as learned."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import gymnasium as gym

from benchmarks.lag_cells import PREFETCH, PULL, PUSH, SAMPLE, SETTINGS, TITLES

ARMS = {arm: TITLES[arm] for arm in (PUSH, PULL, SAMPLE, PREFETCH)}
ALGORITHMS = {"appo": "APPO", "impala": "IMPALA"}
# Of which the mean return is taken: few, so that it follows soon.
EPISODES = 50
_TTL_S = 600.0


@dataclass(frozen=True)
class Task:
    """An environment, and the mean return of the last episodes that is to be reached.

    Args:
        title: For readers.
        env: Gymnasium's name.
        threshold: Of the mean return.
        max_steps: Env steps after which a run is ended; then it is not known when it would have.
        entropy: Its coefficient in the loss.
        scale: Of the rewards, and so of the returns.
    """

    title: str
    env: str
    threshold: float
    max_steps: int
    entropy: float = 0.0
    scale: float = 1.0


class ScaledEnv(gym.Wrapper[Any, Any, Any, Any]):
    """Scales the rewards of another environment.

    Args:
        config: `env`: its name; `scale`.
    """

    def __init__(self, config: Any) -> None:
        super().__init__(gym.make(config["env"]))
        self._scale = float(config["scale"])

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """As the environment's."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, self._scale * float(reward), terminated, truncated, info


TASKS = {
    "cartpole": Task("CartPole-v1", "CartPole-v1", 200.0, 150_000),
    # Unscaled, advantages of a hundred make the policy sure of itself too early: it stays at -500.
    "acrobot": Task("Acrobot-v1, rewards / 50", "Acrobot-v1", -3.0, 200_000, 0.01, scale=0.02),
}


@dataclass(frozen=True)
class Case:
    """A task and an algorithm."""

    task: str
    algorithm: str

    @classmethod
    def parse(cls, name: str) -> Case:
        """From a name as `cartpole-appo`.

        Raises:
            ValueError: If it is none.
        """
        task, _, algorithm = name.partition("-")
        if task not in TASKS or algorithm not in ALGORITHMS:
            raise ValueError(f"{name!r} is no case: {', '.join(case.name for case in CASES)}")
        return cls(task, algorithm)

    @property
    def name(self) -> str:
        """As `parse` reads it."""
        return f"{self.task}-{self.algorithm}"

    @property
    def title(self) -> str:
        """For readers."""
        return f"{TASKS[self.task].title}, {ALGORITHMS[self.algorithm]}"


CASES = tuple(Case(task, algorithm) for task in TASKS for algorithm in ALGORITHMS)


def plain_config(case: Case, arm: str) -> dict[str, Any]:
    """All that a run depends on besides its seed; to be hashed."""
    return {
        "case": asdict(case),
        "task": asdict(TASKS[case.task]),
        "episodes": EPISODES,
        "settings": SETTINGS.get(arm, {}),
    }


def make_config(case: Case, arm: str, seed: int, url: str, namespace: str) -> Any:
    """The AlgorithmConfig of a run: arms differ in how weights travel, and in nothing else."""
    from redis_state_sync.demo.rllib_configs import rllib_config
    from redis_state_sync.rllib import with_redis_state

    task = TASKS[case.task]
    config: Any = rllib_config(case.algorithm, task.env, seed)
    config.env_runners(num_cpus_per_env_runner=0, use_env_runner_state_server=arm == PULL)
    config.training(timeout_s_sampler_manager=0.002, entropy_coeff=task.entropy)
    config.reporting(min_time_s_per_iteration=0.5, metrics_num_episodes_for_smoothing=EPISODES)
    if task.scale != 1:
        config.environment(ScaledEnv, env_config={"env": task.env, "scale": task.scale})
    if arm in SETTINGS:
        config = with_redis_state(config, url, namespace=namespace, ttl_s=_TTL_S, **SETTINGS[arm])
    return config
