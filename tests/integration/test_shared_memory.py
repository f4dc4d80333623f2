"""EnvRunners that share their weights' memory with the learner, and rely on the server's word."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from ray.rllib.algorithms.appo import APPOConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

from redis_state_sync.embedded import EmbeddedServer
from redis_state_sync.rllib import with_redis_state
from tests.integration.held import assert_runners_hold, published

LONG = 30.0


def large(config: Any) -> Any:
    """Weights of a megabyte: enough to be shared."""
    return (
        config.environment("CartPole-v1")
        .env_runners(num_env_runners=2, rollout_fragment_length=50)
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[512, 512]))
        .training(train_batch_size_per_learner=100)
    )


def mapped_weights(runner: Any) -> bool:
    """Runs in an EnvRunner: whether its largest tensor lies in a file of the node's cache."""
    largest = max(runner.module.parameters(), key=lambda p: p.numel())
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(part, 16) for part in line.split()[0].split("-"))
        if start <= largest.data_ptr() < end:
            return f"redis-state-sync-{os.geteuid()}/" in line
    return False


@pytest.fixture
def client(server: EmbeddedServer) -> Iterator[redis.Redis]:
    with redis.Redis(unix_socket_path=str(server.socket_path)) as client:
        yield client


def test_weights_are_not_copied(build: Any, server: EmbeddedServer, client: redis.Redis) -> None:
    """EnvRunners act with the learner's own memory: it is not sent, and equal bit for bit."""
    config = large(PPOConfig()).training(minibatch_size=50, num_epochs=1)
    algo = build(with_redis_state(config, server.url))
    algo.train()
    assert_runners_hold(algo.env_runner_group, published(algo), expected=2)
    before = client.info("stats")["total_net_output_bytes"]
    algo.train()
    sent = client.info("stats")["total_net_output_bytes"] - before
    assert_runners_hold(algo.env_runner_group, published(algo), expected=2)
    group = algo.env_runner_group
    assert group.foreach_env_runner(mapped_weights, local_env_runner=False) == [True, True]
    assert sent < 200_000
    algo.stop()


def test_weights_of_their_own(build: Any, server: EmbeddedServer) -> None:
    """With node_cache_bytes=0 each EnvRunner has weights of its own, and the right ones."""
    config = large(PPOConfig()).training(minibatch_size=50, num_epochs=1)
    algo = build(with_redis_state(config, server.url, node_cache_bytes=0))
    algo.train()
    assert_runners_hold(algo.env_runner_group, published(algo), expected=2)
    group = algo.env_runner_group
    assert group.foreach_env_runner(mapped_weights, local_env_runner=False) == [False, False]
    algo.stop()


def test_tracking(build: Any, server: EmbeddedServer, client: redis.Redis) -> None:
    """With protocol=3, APPO's EnvRunners are told of new versions, and train as ever."""
    algo = build(with_redis_state(large(APPOConfig()), f"{server.url}?protocol=3"))
    first = algo.redis_state_sync.publisher.last_version
    deadline = time.monotonic() + LONG
    held: list[Any] = [None]
    while None in held or min(held) <= first:
        algo.train()
        held = algo.env_runner_group.foreach_env_runner(
            lambda runner: runner.redis_state_version, local_env_runner=False
        )
        assert time.monotonic() < deadline
    tracking = [entry for entry in client.client_list() if "t" in entry["flags"]]
    assert len(tracking) == 2
    algo.stop()


def test_no_tracking_where_the_next_sample_must_see_it(
    build: Any, server: EmbeddedServer, client: redis.Redis
) -> None:
    """A synchronous algorithm's EnvRunners ask at each sample(), whatever the protocol."""
    config = large(PPOConfig()).training(minibatch_size=50, num_epochs=1)
    algo = build(with_redis_state(config, f"{server.url}?protocol=3"))
    for _ in range(3):
        algo.train()
        assert_runners_hold(algo.env_runner_group, published(algo), expected=2)
    assert not [entry for entry in client.client_list() if "t" in entry["flags"]]
    algo.stop()
