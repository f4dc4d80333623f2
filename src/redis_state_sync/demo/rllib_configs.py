"""Configs that learn CartPole-v1 within a minute or two on two cores."""

from __future__ import annotations

from typing import Any

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.appo import APPOConfig
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

from redis_state_sync.demo.options import Options
from redis_state_sync.rllib import with_redis_state

NUM_ENV_RUNNERS = 2
# Nobody reads the demo's versions later on; on a server that is not ours they go away soon.
_TTL_S = 600.0

_ASYNC: dict[str, Any] = {
    "lr": 0.001,
    "train_batch_size_per_learner": 500,
    "vf_loss_coeff": 0.05,
    "entropy_coeff": 0.0,
    "grad_clip": 20.0,
}
_TRAINING: dict[str, tuple[type[AlgorithmConfig], dict[str, Any]]] = {
    "appo": (APPOConfig, _ASYNC),
    "impala": (IMPALAConfig, _ASYNC),
    "ppo": (
        PPOConfig,
        {
            "lr": 0.0005,
            "train_batch_size_per_learner": 1000,
            "minibatch_size": 250,
            "num_epochs": 6,
            "vf_loss_coeff": 0.05,
        },
    ),
}
ALGORITHMS = tuple(_TRAINING)


def make_config(options: Options, url: str) -> AlgorithmConfig:
    """The config of a run: RLlib's own, and one call for Redis at the end."""
    config = rllib_config(options.algo, options.env, options.seed)
    return with_redis_state(config, url, ttl_s=_TTL_S)


def rllib_config(algo: str, env: str, seed: int) -> AlgorithmConfig:
    """What is RLlib's own: nothing in it knows Redis."""
    config_class, training = _TRAINING[algo]
    return (
        config_class()
        .environment(env)
        .env_runners(
            num_env_runners=NUM_ENV_RUNNERS,
            num_envs_per_env_runner=4,
            rollout_fragment_length="auto" if algo == "ppo" else 50,
        )
        .learners(num_learners=0)
        .training(**training)
        .rl_module(model_config=DefaultModelConfig(vf_share_layers=True))
        .reporting(min_time_s_per_iteration=1)
        .debugging(seed=seed)
    )
