"""Algorithms train through Redis, and their EnvRunners hold what was published, bit for bit."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from ray.rllib.algorithms.appo import APPOConfig
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.connectors.env_to_module import MeanStdFilter
from ray.rllib.connectors.env_to_module.frame_stacking import FrameStackingEnvToModule
from ray.rllib.connectors.learner.frame_stacking import FrameStackingLearner
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.examples.envs.classes.multi_agent import MultiAgentCartPole

from redis_state_sync.embedded import EmbeddedServer
from redis_state_sync.rllib import RedisAPPOConfig, RedisPPOConfig, with_redis_state
from tests.integration.held import assert_runners_hold, held, published, settle


def ppo(config_class: Any = PPOConfig, *, runners: int = 1) -> Any:
    return (
        config_class()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=runners, rollout_fragment_length=50)
        .training(train_batch_size_per_learner=100, minibatch_size=50, num_epochs=1)
    )


def async_(config_class: Any, *, runners: int = 1, learners: int = 0) -> Any:
    return (
        config_class()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=runners, rollout_fragment_length=25)
        .training(train_batch_size_per_learner=100)
        .learners(num_learners=learners)
        .reporting(min_time_s_per_iteration=1)
    )


def mean_std(env: Any = None, spaces: Any = None, device: Any = None) -> MeanStdFilter:
    return MeanStdFilter()


def differs(a: dict[str, Any], b: dict[str, Any], component: str) -> bool:
    return any(not np.array_equal(a[component][k], b[component][k]) for k in a[component])


def train_until_published(algo: Any, *, versions: int = 3, iterations: int = 15) -> dict[str, Any]:
    first = published(algo)
    for _ in range(iterations):
        algo.train()
        state = published(algo)
        if state["version"].number >= first["version"].number + versions:
            break
    assert state["version"] > first["version"]
    return state


@pytest.mark.parametrize("runners", [1, 2])
def test_ppo_with_filter(server: EmbeddedServer, build: Any, runners: int) -> None:
    """After train(), every EnvRunner of PPO has the published weights and filter state. C22"""
    config = ppo(runners=runners).env_runners(env_to_module_connector=mean_std)
    algo = build(with_redis_state(config, server.url))
    first = published(algo)
    for _ in range(2):
        result = algo.train()
    state = published(algo)
    assert_runners_hold(algo.env_runner_group, state, expected=runners)
    assert differs(first, state, "rl_module/default_policy")
    stats = state["env_to_module_connector"]["MeanStdFilter"][None]["running_stats"][0]
    assert stats["num_pushes"] > 100
    # What a user sees.
    assert result["redis_state"]["last_version"] == str(state["version"])
    assert result["redis_state"]["num_pushes_lifetime"] == 0
    runner_results = result["env_runners"]["redis_state"]
    assert runner_results["num_fetches_lifetime"] >= runners
    assert runner_results["version_number_max"] <= state["version"].number
    assert {"poll_timer", "fetch_timer", "apply_timer"} <= runner_results.keys()


@pytest.mark.parametrize("config_class", [APPOConfig, IMPALAConfig])
@pytest.mark.parametrize("learners", [0, 1])
def test_asynchronous(server: EmbeddedServer, build: Any, config_class: Any, learners: int) -> None:
    """APPO and IMPALA publish in the background, and EnvRunners reach the newest. C22 C56"""
    config = async_(config_class, learners=learners).env_runners(env_to_module_connector=mean_std)
    algo = build(with_redis_state(config, server.url))
    first = published(algo)
    train_until_published(algo)
    state = settle(algo)
    assert_runners_hold(algo.env_runner_group, state, expected=1)
    assert differs(first, state, "rl_module/default_policy")
    assert state["seq_no"] > 0


def test_aggregator_actors(server: EmbeddedServer, build: Any) -> None:
    """Aggregator actors between EnvRunners and learner change nothing."""
    config = async_(APPOConfig).learners(num_aggregator_actors_per_learner=1)
    algo = build(with_redis_state(config, server.url))
    train_until_published(algo)
    state = settle(algo)
    assert_runners_hold(algo.env_runner_group, state, expected=1)


def test_frozen_module_is_not_sent_again(server: EmbeddedServer, build: Any) -> None:
    """Of two modules only the trained one is sent; the EnvRunners hold both. C42"""
    config = RedisPPOConfig().redis_state(url=server.url)  # before .multi_agent(): decided late
    config = (
        config.environment(MultiAgentCartPole, env_config={"num_agents": 2})
        .env_runners(num_env_runners=1, rollout_fragment_length=50)
        .training(train_batch_size_per_learner=100, minibatch_size=50, num_epochs=1)
        .multi_agent(
            policies={"p0", "p1"},
            policy_mapping_fn=lambda agent_id, episode, **kw: f"p{agent_id}",
            policies_to_train=["p0"],
        )
    )
    algo = build(config)
    first = published(algo)
    before = algo.redis_state_sync.publisher.stats.bytes_sent
    algo.train()
    state = published(algo)
    assert_runners_hold(algo.env_runner_group, state, expected=1)
    assert differs(first, state, "rl_module/p0")
    assert not differs(first, state, "rl_module/p1")
    sizes = _component_bytes(algo)
    sent = algo.redis_state_sync.publisher.stats.bytes_sent - before
    # Once p0, and twice the small rest: connectors and counters; never p1.
    assert sizes["rl_module/p0"] <= sent < sizes["rl_module/p0"] + sizes["rl_module/p1"] / 2


def test_modules_come_and_go(server: EmbeddedServer, build: Any) -> None:
    """A module that is added is published and held; one that is removed is not any more. C47"""
    config = (
        RedisPPOConfig()
        .redis_state(url=server.url)
        .environment(MultiAgentCartPole, env_config={"num_agents": 2})
        .env_runners(num_env_runners=1, rollout_fragment_length=50)
        .training(train_batch_size_per_learner=100, minibatch_size=50, num_epochs=1)
        .multi_agent(
            policies={"p0", "p1"},
            policy_mapping_fn=lambda agent_id, episode, **kw: f"p{agent_id}",
        )
    )
    algo = build(config)
    spec = RLModuleSpec.from_module(algo.get_module("p0"))
    spec.inference_only = False
    algo.add_module("late", spec)
    algo.train()
    state = published(algo)
    assert "rl_module/late" in state
    assert_runners_hold(algo.env_runner_group, state, expected=1)
    algo.remove_module("late")
    algo.train()
    state = published(algo)
    assert "rl_module/late" not in state
    assert_runners_hold(algo.env_runner_group, state, expected=1)


def _component_bytes(algo: Any) -> dict[str, int]:
    from redis_state_sync.manifest import Manifest

    publisher = algo.redis_state_sync.publisher
    (entry,) = publisher.store.newest(publisher.keys, timeout=2)
    return {n: c.size for n, c in Manifest.decode(entry.manifest).components.items()}


def test_lstm(server: EmbeddedServer, build: Any) -> None:
    """An LSTM module's weights arrive like any other's."""
    config = ppo().rl_module(model_config=DefaultModelConfig(use_lstm=True, max_seq_len=10))
    algo = build(with_redis_state(config, server.url))
    algo.train()
    state = published(algo)
    assert any("lstm" in name for name in state["rl_module/default_policy"])
    assert_runners_hold(algo.env_runner_group, state, expected=1)


class TinyImages(gym.Env[Any, Any]):
    """Frames of 10 x 10 pixels in one channel, which is what frame stacking takes."""

    observation_space = gym.spaces.Box(0.0, 1.0, (10, 10, 1), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, config: Any = None) -> None:
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.steps = 0
        return np.zeros((10, 10, 1), np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        frame = np.full((10, 10, 1), self.steps / 20, np.float32)
        return frame, float(action), self.steps >= 20, False, {}


def test_frame_stacking(server: EmbeddedServer, build: Any) -> None:
    """A module that sees stacked frames, and its pipeline, are held as published."""
    config = (
        ppo()
        .environment(TinyImages)
        .env_runners(
            env_to_module_connector=lambda env, spaces, device: FrameStackingEnvToModule(
                num_frames=2
            )
        )
        .learners(
            learner_connector=lambda obs_space, action_space: FrameStackingLearner(num_frames=2)
        )
    )
    algo = build(with_redis_state(config, server.url))
    first = published(algo)
    algo.train()
    state = published(algo)
    assert differs(first, state, "rl_module/default_policy")
    assert_runners_hold(algo.env_runner_group, state, expected=1)


@pytest.mark.parametrize("config", [ppo(runners=0), async_(APPOConfig, runners=0)])
def test_no_remote_env_runner(server: EmbeddedServer, build: Any, config: Any) -> None:
    """Without remote EnvRunners every version is still published, for readers elsewhere."""
    config = config.copy().env_runners(env_to_module_connector=mean_std)
    algo = build(with_redis_state(config, server.url))
    state = train_until_published(algo, versions=2)
    local = algo.env_runner
    assert local.redis_state_version is None
    stats = state["env_to_module_connector"]["MeanStdFilter"][None]["running_stats"][0]
    assert stats["num_pushes"] > 0
    for name, value in local.module.get_state().items():
        if state["seq_no"] == local._weights_seq_no:
            assert np.array_equal(value, state["rl_module/default_policy"][name])


def test_no_local_env_runner(server: EmbeddedServer, build: Any) -> None:
    """Without a local EnvRunner the Algorithm's own connectors are what is published. C24"""
    config = ppo().env_runners(create_local_env_runner=False, env_to_module_connector=mean_std)
    algo = build(with_redis_state(config, server.url))
    assert algo.env_runner is None
    algo.train()
    state = published(algo)
    assert_runners_hold(algo.env_runner_group, state, expected=1)


def test_any_algorithm(server: EmbeddedServer, build: Any) -> None:
    """with_redis_state needs nothing of the Algorithm's class: DQN samples in its own way."""
    config = (
        DQNConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=1, rollout_fragment_length=20)
        .training(num_steps_sampled_before_learning_starts=20, train_batch_size_per_learner=16)
        .reporting(min_sample_timesteps_per_iteration=40, min_time_s_per_iteration=0)
    )
    algo = build(with_redis_state(config, server.url))
    first = published(algo)
    for _ in range(3):
        algo.train()
    state = published(algo)
    assert differs(first, state, "rl_module/default_policy")
    assert_runners_hold(algo.env_runner_group, state, expected=1)


def test_sync_from_the_local_env_runner(server: EmbeddedServer, build: Any) -> None:
    """Weights that a user has the local EnvRunner sync, which are not keyed by module, arrive."""
    algo = build(with_redis_state(ppo(), server.url))
    module = algo.env_runner.module
    module.set_state({k: v + 1 for k, v in module.get_state().items()})
    algo.env_runner._weights_seq_no = 7
    algo.env_runner_group.sync_weights()
    state = published(algo)
    assert state["seq_no"] == 7
    for name, value in module.get_state().items():
        assert np.array_equal(value, state["rl_module/default_policy"][name])
    algo.env_runner_group.foreach_env_runner(
        lambda r: r.refresh_redis_state(), local_env_runner=False
    )
    assert_runners_hold(algo.env_runner_group, state, expected=1)


def test_three_publishes_one_fetch(server: EmbeddedServer, build: Any) -> None:
    """Publishes during one sample() cost one fetch; nothing published means nothing fetched. C1"""
    algo = build(
        RedisAPPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=1)
        .redis_state(url=server.url)
    )
    publisher = algo.redis_state_sync.publisher
    group = algo.env_runner_group

    def fetches(runner: Any) -> tuple[int, int]:
        metrics = runner.metrics
        return tuple(
            int(metrics.peek(("redis_state", name), default=0))
            for name in ("num_fetches_lifetime", "num_polls_lifetime")
        )

    def sample(runner: Any) -> tuple[int, int]:
        runner.sample(num_timesteps=5)
        return fetches(runner)

    (start,) = group.foreach_env_runner(sample, local_env_runner=False)
    (again,) = group.foreach_env_runner(sample, local_env_runner=False)
    assert again == (start[0], start[1] + 1)
    for steps in (1, 2, 3):
        publisher.publish({"counters": {"num_env_steps_sampled_lifetime": steps}}).wait(5)
    (after,) = group.foreach_env_runner(sample, local_env_runner=False)
    assert after == (start[0] + 1, start[1] + 2)
    assert held(group)[0]["version"] == publisher.last_version
