"""Ray Tune: trials never meet by accident, and no file of an experiment holds a secret."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
import redis
from ray import tune
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.ppo import PPOConfig

from redis_state_sync.embedded import EmbeddedServer
from redis_state_sync.rllib import RedisPPOConfig, with_redis_state
from tests.integration.conftest import start_ray

PASSWORD = secrets.token_hex(16)


@pytest.fixture(scope="module")
def locked_server() -> Iterator[EmbeddedServer]:
    """A server that asks for a password, which Ray's processes have in their environment."""
    with pytest.MonkeyPatch.context() as patch, EmbeddedServer(password=PASSWORD) as running:
        patch.setenv("REDIS_STATE_SYNC_PASSWORD", PASSWORD)
        start_ray()
        yield running
        ray.shutdown()


def small(config: Any) -> Any:
    return (
        config.environment("CartPole-v1")
        .env_runners(num_env_runners=1, rollout_fragment_length=50)
        .training(
            train_batch_size_per_learner=100,
            minibatch_size=50,
            num_epochs=1,
            lr=tune.grid_search([0.0001, 0.0002]),
        )
    )


@pytest.mark.parametrize("way", ["function", "fluent"])
def test_two_trials(locked_server: EmbeddedServer, tmp_path: Path, way: str) -> None:
    """Trials of one experiment have namespaces of their own, their files no password. C96 C98"""
    if way == "function":
        config = with_redis_state(small(PPOConfig()), locked_server.url)
    else:
        config = small(RedisPPOConfig()).redis_state(url=locked_server.url)
    results = tune.Tuner(
        "PPO",
        param_space=config,
        run_config=tune.RunConfig(
            name=f"exp-{way}",
            storage_path=str(tmp_path),
            stop={"training_iteration": 2},
            verbose=0,
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=True),
        ),
    ).fit()
    assert not results.errors
    reported = [result.metrics["redis_state"] for result in results]
    namespaces = {r["namespace"] for r in reported}
    assert len(namespaces) == 2
    assert all(n.startswith(f"exp-{way}/PPO_CartPole-v1_") for n in namespaces)
    for r in reported:
        # The EnvRunners of each trial followed its own learner.
        assert r["num_pushes_lifetime"] == 0
        assert r["num_publishes_lifetime"] > 2
    for result in results:
        fetched = result.metrics["env_runners"]["redis_state"]
        assert fetched["num_fetches_lifetime"] >= 2
        assert fetched["generation"] == result.metrics["redis_state"]["generation"]
    client = redis.Redis(unix_socket_path=str(locked_server.socket_path), password=PASSWORD)
    for r in reported:
        assert client.exists(f"rss:{{{r['namespace']}}}:versions")
    assert_no_secret(tmp_path)
    # A trial's checkpoint can be restored, and publishes again.
    algo = Algorithm.from_checkpoint(results[0].checkpoint.path)
    try:
        assert algo.train()["redis_state"]["num_publishes_lifetime"] > 1
    finally:
        algo.stop()


def assert_no_secret(folder: Path) -> None:
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert any("params.json" in path.name for path in files)
    assert any(path.suffix == ".pkl" for path in files)
    holding = [path for path in files if PASSWORD.encode() in path.read_bytes()]
    assert not holding


def test_ray_logs_hold_no_secret(locked_server: EmbeddedServer) -> None:
    """Nor do Ray's own logs of the session."""
    logs = Path(ray._private.worker._global_node.get_session_dir_path()) / "logs"
    files = [path for path in logs.rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if PASSWORD.encode() in path.read_bytes()]
