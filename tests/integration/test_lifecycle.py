"""Restarts and evaluation: EnvRunners, drivers and checkpoints come and go, the state stays."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import ray
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.appo import APPOConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.connectors.env_to_module import MeanStdFilter

from redis_state_sync import StalePublisherError
from redis_state_sync.embedded import EmbeddedServer
from redis_state_sync.rllib import with_redis_state
from tests.integration.held import (
    PATIENT,
    assert_runners_hold,
    assert_same,
    held,
    published,
    read_runner,
    settle,
)


def mean_std(env: Any = None, spaces: Any = None, device: Any = None) -> MeanStdFilter:
    return MeanStdFilter()


def ppo(**env_runners: Any) -> Any:
    return (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(
            rollout_fragment_length=50,
            env_to_module_connector=mean_std,
            **{"num_env_runners": 1, **env_runners},
        )
        .training(train_batch_size_per_learner=100, minibatch_size=50, num_epochs=1)
    )


def appo() -> Any:
    return (
        APPOConfig()
        .environment("CartPole-v1")
        .env_runners(
            num_env_runners=1, rollout_fragment_length=25, env_to_module_connector=mean_std
        )
        .training(train_batch_size_per_learner=100)
        .reporting(min_time_s_per_iteration=1)
    )


# Ray refuses parallel evaluation without remote EnvRunners.
@pytest.mark.parametrize(("eval_runners", "parallel"), [(0, False), (1, False), (1, True)])
def test_evaluation(server: EmbeddedServer, build: Any, eval_runners: int, parallel: bool) -> None:
    """EnvRunners for evaluation act with the published weights and filter state. C25 C35 C38"""
    config = ppo().evaluation(
        evaluation_interval=1,
        evaluation_num_env_runners=eval_runners,
        evaluation_duration=2,
        evaluation_parallel_to_training=parallel,
        evaluation_config={"explore": False},
    )
    algo = build(with_redis_state(config, server.url))
    for _ in range(2):
        result = algo.train()
    assert result["evaluation"]["env_runners"]["num_episodes"] >= 1
    before = algo.redis_state_sync.publisher.stats.publishes
    algo.evaluate()
    # Everything was published already: evaluating again announces nothing new.
    assert algo.redis_state_sync.publisher.stats.publishes == before
    state = published(algo)
    group = algo.eval_env_runner_group
    runners = held(group) if eval_runners else [read_runner(group.local_env_runner)]
    assert len(runners) == 1
    for name, value in runners[0]["rl_module/default_policy"].items():
        assert np.array_equal(value, state["rl_module/default_policy"][name])
    stats = runners[0]["env_to_module_connector"]["MeanStdFilter"][None]["running_stats"][0]
    common = state["env_to_module_connector"]["MeanStdFilter"][None]["running_stats"][0]
    # It went on from the common state while evaluating, and never from an empty one.
    assert stats["num_pushes"] >= common["num_pushes"] > 100
    if eval_runners:
        assert runners[0]["version"] == state["version"]


def test_evaluation_of_newer_weights(server: EmbeddedServer, build: Any) -> None:
    """An asynchronous algorithm's evaluation sees the learner's weights, not the last sync's."""
    config = appo().evaluation(
        evaluation_interval=None, evaluation_num_env_runners=1, evaluation_duration=1
    )
    algo = build(with_redis_state(config, server.url))
    for _ in range(3):
        algo.train()
    learner = algo.learner_group.get_state(components="learner/rl_module", inference_only=True)[
        "learner"
    ]
    algo.evaluate()
    (runner,) = held(algo.eval_env_runner_group)
    assert runner["seq_no"] >= learner["weights_seq_no"]


@pytest.mark.parametrize("local", [True, False])
def test_killed_env_runner(server: EmbeddedServer, build: Any, local: bool) -> None:
    """A restarted EnvRunner acts with the newest version from its first sample() on. C24"""
    config = ppo(create_local_env_runner=local).fault_tolerance(
        restart_failed_env_runners=True, delay_between_env_runner_restarts_s=0.0
    )
    algo = build(with_redis_state(config, server.url, **PATIENT))
    algo.train()
    actor = algo.env_runner_group._worker_manager.actors()[1]
    old_pid = ray.get(actor.apply.remote(_pid))
    ray.kill(actor, no_restart=False)
    deadline = time.monotonic() + 60
    while True:
        try:
            # Before Ray's own recovery pushes anything: the actor is new and holds nothing.
            pid, version_before, version, state = ray.get(actor.apply.remote(_first_sample))
            break
        except ray.exceptions.RayActorError:
            assert time.monotonic() < deadline
            time.sleep(0.2)
    assert pid != old_pid
    assert version_before is None
    newest = published(algo)
    assert version == newest["version"]
    # Sampled once since, so the filter moved on; the weights can not have.
    assert_same(
        state["rl_module/default_policy"],
        {k: newest["rl_module/default_policy"][k] for k in state["rl_module/default_policy"]},
    )
    algo.train()
    for _ in range(3):
        if algo.env_runner_group.num_healthy_remote_env_runners() == 1:
            break
        algo.train()
    algo.train()
    assert_runners_hold(algo.env_runner_group, published(algo), expected=1)


def _pid(_runner: Any) -> int:
    import os

    return os.getpid()


def _first_sample(runner: Any) -> Any:
    before = runner.redis_state_version
    runner.sample(num_timesteps=3)
    return _pid(runner), before, runner.redis_state_version, read_runner(runner)


def test_driver_restarted(server: EmbeddedServer, build: Any) -> None:
    """A second driver in the namespace takes over: its EnvRunners apply states although their
    WEIGHTS_SEQ_NO is smaller, and the first one is refused and leaves its EnvRunners alone. C11 C34
    """
    first = build(with_redis_state(ppo(), server.url, namespace="restarted"))
    for _ in range(3):
        first.train()
    old = published(first)
    second = build(with_redis_state(ppo(), server.url, namespace="restarted"))
    second.train()
    new = published(second)
    assert new["version"] > old["version"]
    assert new["version"].generation > old["version"].generation
    assert new["seq_no"] < old["seq_no"]
    assert_runners_hold(second.env_runner_group, new, expected=1)
    # The first one's EnvRunner polls, sees another learner's state, and keeps its own.
    first.env_runner_group.foreach_env_runner(
        lambda r: r.sample(num_timesteps=3), local_env_runner=False
    )
    (runner,) = held(first.env_runner_group)
    assert runner["version"] == old["version"]
    with pytest.raises(StalePublisherError, match=r"'restarted'.*was taken over by generation"):
        _train(first, iterations=3)
    # Nor does the refused one reach its own EnvRunners any more, or the store.
    assert published(second)["version"] == new["version"]


def _train(algo: Any, *, iterations: int) -> None:
    for _ in range(iterations):
        algo.train()


def test_from_checkpoint(server: EmbeddedServer, build: Any, tmp_path: Any) -> None:
    """A restored Algorithm's EnvRunners have its weights and filters before they step. C23"""
    algo = build(with_redis_state(ppo(), server.url, namespace="checkpoint"))
    for _ in range(2):
        algo.train()
    algo.save_to_path(tmp_path / "checkpoint")
    saved = published(algo)
    algo.stop()
    restored = Algorithm.from_checkpoint(str(tmp_path / "checkpoint"))
    try:
        state = published(restored)
        assert state["version"] > saved["version"]
        assert state["seq_no"] == saved["seq_no"]
        assert_same(state["rl_module/default_policy"], saved["rl_module/default_policy"])
        count = "num_pushes"
        new, old = (
            s["env_to_module_connector"]["MeanStdFilter"][None]["running_stats"][0]
            for s in (state, saved)
        )
        assert new[count] == old[count] > 100
        restored.env_runner_group.foreach_env_runner(
            lambda r: r.refresh_redis_state(), local_env_runner=False
        )
        assert_runners_hold(restored.env_runner_group, state, expected=1)
        restored.train()
        assert_runners_hold(restored.env_runner_group, published(restored), expected=1)
    finally:
        restored.stop()


def test_set_state_from_outside(server: EmbeddedServer, build: Any) -> None:
    """A state set from outside is replaced by the newest version at the next sample()."""
    algo = build(with_redis_state(ppo(), server.url, **PATIENT))
    algo.train()

    def spoil(runner: Any) -> None:
        state = runner.get_state()
        state["rl_module"] = {k: np.zeros_like(v) for k, v in state["rl_module"].items()}
        state["weights_seq_no"] = 0
        runner.set_state(state)
        assert not any(np.any(v) for v in runner.module.get_state().values())
        runner.sample(num_timesteps=3)

    algo.env_runner_group.foreach_env_runner(spoil, local_env_runner=False)
    state = published(algo)
    (runner,) = held(algo.env_runner_group)
    assert_same(
        runner["rl_module/default_policy"],
        {k: state["rl_module/default_policy"][k] for k in runner["rl_module/default_policy"]},
    )


def test_local_fallback_samples_with_newest_weights(server: EmbeddedServer, build: Any) -> None:
    """Before it samples, a local EnvRunner is given newer weights than Ray left it with."""
    config = appo().env_runners(create_env_on_local_worker=True)
    algo = build(with_redis_state(config, server.url))
    while algo.redis_state_sync.publisher.stats.publishes < 4:
        algo.train()
    state = settle(algo)
    local = algo.env_runner
    assert local._weights_seq_no < state["seq_no"]
    local.sample(num_timesteps=2)
    assert local._weights_seq_no == state["seq_no"]
    for name, value in local.module.get_state().items():
        assert np.array_equal(value, state["rl_module/default_policy"][name])


def test_stop_releases_everything(server: EmbeddedServer, build: Any) -> None:
    """algo.stop() ends the publishing thread and all connections to the server."""
    import threading

    import redis

    client = redis.Redis(unix_socket_path=str(server.socket_path))

    def settled(count: int) -> bool:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            if client.info("clients")["connected_clients"] <= count:
                return True
            time.sleep(0.1)
        return False

    before = client.info("clients")["connected_clients"]
    algo = build(with_redis_state(ppo(), server.url))
    algo.train()
    assert client.info("clients")["connected_clients"] > before
    algo.stop()
    assert settled(before)
    assert not [t for t in threading.enumerate() if t.name == "redis-state-sync-publish"]
