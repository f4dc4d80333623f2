"""The cells and arms of the staleness benchmark, and the one config that all arms share."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks import sleepy_env
from benchmarks.sleepy_env import MAX_RUNNERS, SleepyEnv

PUSH, PULL, SAMPLE, FLIGHT, PREFETCH = "push", "pull", "sample", "flight", "prefetch"
TITLES = {
    PUSH: "Ray's push",
    PULL: "Ray's state server",
    SAMPLE: "ours, at `sample()`",
    FLIGHT: "ours, in flight",
    PREFETCH: "ours, in flight + prefetch",
}
_EACH_STEP: dict[str, Any] = {"refresh": "steps", "refresh_every_steps": 1}
# What `with_redis_state` gets; Ray's own arms do without it.
SETTINGS: dict[str, dict[str, Any]] = {
    SAMPLE: {},
    FLIGHT: {**_EACH_STEP, "prefetch": False},
    PREFETCH: {**_EACH_STEP, "prefetch": True},
}
# Equal in all arms. With the default of 0 the driver asks for samples without a pause, and keeps
# one of two cores busy.
SAMPLER_TIMEOUT_S = 0.005
_TTL_S = 600.0
_NAME = re.compile(r"(\d+)x(\d+)(l1)?")


@dataclass(frozen=True)
class Cell:
    """One setting of the experiment, the same for all arms.

    Args:
        fragment: Env steps of one `sample()`, and of one training batch.
        runners: EnvRunners.
        learners: 0: the learner is a thread of the driver; 1: an actor.
    """

    fragment: int
    runners: int
    learners: int = 0

    @classmethod
    def parse(cls, name: str) -> Cell:
        """From a name as `100x4` or `100x4l1`.

        Raises:
            ValueError: If it is none.
        """
        match = _NAME.fullmatch(name)
        if match is None or not 0 < int(match[2]) < MAX_RUNNERS or not int(match[1]):
            raise ValueError(
                f"{name!r} is no cell: write <fragment>x<EnvRunners>, as 100x4, "
                "and 100x4l1 for num_learners=1"
            )
        return cls(int(match[1]), int(match[2]), 1 if match[3] else 0)

    @property
    def name(self) -> str:
        """As `parse` reads it."""
        return f"{self.fragment}x{self.runners}" + ("l1" if self.learners else "")

    @property
    def title(self) -> str:
        """For readers."""
        learner = ", learner actor" if self.learners else ""
        return f"{self.fragment} steps, {self.runners} EnvRunners{learner}"

    @property
    def step_s(self) -> float:
        """Seconds of an env step: what leaves two cores idle enough, see docs/staleness.md."""
        return 0.005 if self.runners <= 4 else 0.00125 * self.runners

    @property
    def fragment_s(self) -> float:
        """Seconds of a fragment."""
        return self.fragment * self.step_s


DEFAULT = tuple(Cell.parse(name) for name in ("100x4", "20x8", "400x8", "100x4l1"))
WHOLE = tuple(
    dict.fromkeys(
        (*DEFAULT, *(Cell(fragment, n) for fragment in (20, 100, 400) for n in (2, 8, 16)))
    )
)


@dataclass(frozen=True)
class Timing:
    """How long a run is.

    Args:
        seconds: What counts, at least.
        warm_up_s: What does not, before.
        fragments: Each EnvRunner's, at least, in what counts.
        warm_up_fragments: Likewise, before.
    """

    seconds: float = 16.0
    warm_up_s: float = 3.0
    fragments: float = 5.0
    warm_up_fragments: float = 2.5

    def measured_s(self, cell: Cell) -> float:
        """Of a cell."""
        return max(self.seconds, self.fragments * cell.fragment_s)

    def before_s(self, cell: Cell) -> float:
        """Of a cell, from the first update on."""
        return max(self.warm_up_s, self.warm_up_fragments * cell.fragment_s)


def plain_config(cell: Cell, arm: str, timing: Timing) -> dict[str, Any]:
    """All that a run depends on besides its seed; to be hashed."""
    return {
        "cell": asdict(cell),
        "step_s": cell.step_s,
        "timing": asdict(timing),
        "environment": sleepy_env.VERSION,
        "sampler_timeout_s": SAMPLER_TIMEOUT_S,
        "settings": SETTINGS.get(arm, {}),
    }


def make_config(cell: Cell, arm: str, seed: int, url: str, namespace: str) -> Any:
    """The AlgorithmConfig of a run: arms differ in how weights travel, and in nothing else."""
    from ray.rllib.algorithms.appo import APPOConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    config = (
        APPOConfig()
        .environment(
            SleepyEnv,
            env_config={
                "step_s": cell.step_s,
                "fragment_s": cell.fragment_s,
                "runners": cell.runners,
                "seed": seed,
            },
        )
        .env_runners(
            num_env_runners=cell.runners,
            num_envs_per_env_runner=1,
            rollout_fragment_length=cell.fragment,
            num_cpus_per_env_runner=0,
            use_env_runner_state_server=arm == PULL,
        )
        .learners(num_learners=cell.learners, num_cpus_per_learner=1 if cell.learners else "auto")
        .training(
            # One fragment is one batch, and is trained on once: the lag is that of the weights and
            # of the fragment, and not of a replay buffer.
            train_batch_size_per_learner=cell.fragment,
            use_circular_buffer=False,
            broadcast_interval=1,
            lr=0.0003,
            timeout_s_sampler_manager=SAMPLER_TIMEOUT_S,
        )
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[64, 64], vf_share_layers=True))
        .reporting(min_time_s_per_iteration=1)
        .debugging(seed=seed, log_level="ERROR")
    )
    if arm in SETTINGS:
        from redis_state_sync.rllib import with_redis_state

        config = with_redis_state(config, url, namespace=namespace, ttl_s=_TTL_S, **SETTINGS[arm])
    return config
