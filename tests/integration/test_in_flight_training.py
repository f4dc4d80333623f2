"""APPO with real EnvRunners that refresh in flight and prefetch."""

from __future__ import annotations

import threading
import time
from typing import Any

import gymnasium as gym
import ray
from ray import tune
from ray.rllib.algorithms.appo import APPOConfig

from redis_state_sync.embedded import EmbeddedServer
from redis_state_sync.rllib import with_redis_state

STEP_S = 0.002


class Slow(gym.Wrapper):  # type: ignore[type-arg]
    """An env that takes its time."""

    def step(self, action: Any) -> Any:
        time.sleep(STEP_S)
        return self.env.step(action)


def seq_nos(runner: Any) -> tuple[int, int]:
    """Runs in an EnvRunner: how many versions acted in one sample(), and its steps."""
    stamps = [
        number
        for episode in runner.sample(num_timesteps=200)
        for number in episode.get_extra_model_outputs("weights_seq_no")
    ]
    return len(set(stamps)), len(stamps)


def test_appo_in_flight(build: Any, server: EmbeddedServer) -> None:
    """With num_learners=0 and two EnvRunners versions change within samples, results say so, and
    an EnvRunner that is killed in flight comes back and goes on in flight.
    """
    tune.register_env("slow", lambda config: Slow(gym.make("CartPole-v1")))
    config = (
        APPOConfig()
        .environment("slow")
        .env_runners(num_env_runners=2, rollout_fragment_length=50)
        .learners(num_learners=0)
        .training(train_batch_size_per_learner=100)
        .fault_tolerance(restart_failed_env_runners=True)
        .reporting(min_time_s_per_iteration=0.5)
    )
    algo = build(
        with_redis_state(config, server.url, namespace="flying", refresh="steps", prefetch=True)
    )

    def train_until(true: Any) -> Any:
        deadline = time.monotonic() + 120
        while True:
            result = algo.train()
            if true(result):
                return result
            assert time.monotonic() < deadline, result["env_runners"].get("redis_state")

    def in_flight(result: Any) -> bool:
        # More versions applied than there were samples: some were within.
        numbers = result["env_runners"].get("redis_state", {})
        return int(numbers.get("num_fetches_lifetime", 0)) >= 10

    train_until(in_flight)
    group = algo.env_runner_group
    publisher = algo.redis_state_sync.publisher

    def flies() -> bool:
        """While EnvRunners sample, versions come: they act with several in one sample()."""
        stop = threading.Event()

        def publish() -> None:
            weights = algo.get_module().get_state(inference_only=True)
            number = 10**6
            while not stop.wait(0.03):
                number += 1
                publisher.publish({"rl_module/default_policy": weights}, weights_seq_no=number)

        thread = threading.Thread(target=publish)
        thread.start()
        found = group.foreach_env_runner(seq_nos, local_env_runner=False)
        stop.set()
        thread.join()
        assert len(found) == 2
        return any(versions >= 2 for versions, _ in found)

    assert any(flies() for _ in range(5))
    before = group.foreach_env_runner(lambda r: r.redis_state_version, local_env_runner=False)
    assert len(before) == 2
    victim = group._worker_manager.actors()[1]
    ray.kill(victim, no_restart=False)
    train_until(lambda result: group.num_healthy_remote_workers() == 2)
    # Not a number in a result of which no EnvRunner reported a version.
    train_until(lambda result: result["env_runners"]["redis_state"]["version_number_max"] > 0)

    def both_fly(result: Any) -> bool:
        found = group.foreach_env_runner(
            lambda r: (r.redis_state_version, r._redis_state_points.count), local_env_runner=False
        )
        return len(found) == 2 and all(v is not None and count > 0 for v, count in found)

    train_until(both_fly)
