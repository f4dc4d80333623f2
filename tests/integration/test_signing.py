"""RLlib with a signing key in the environment of every process, and a forger at the store."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from ray.rllib.algorithms.ppo import PPOConfig

from redis_state_sync import Keyring, SettingsError, StatePublisher, StateSubscriber, open_store
from redis_state_sync.embedded import EmbeddedServer
from redis_state_sync.keyring import KEY_ENV, KEY_FILE_ENV
from redis_state_sync.rllib import with_redis_state
from tests.integration.conftest import start_ray
from tests.integration.held import assert_runners_hold, published

KEY = "k" * 32


@pytest.fixture(scope="module")
def ray_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Ray's workers have the environment that the driver had when it started Ray."""
    path: Path = tmp_path_factory.mktemp("signing") / "keys"
    path.write_text(f"{KEY}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(KEY_FILE_ENV, str(path))
        start_ray()
        yield
        ray.shutdown()


def ppo() -> Any:
    return (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=1, rollout_fragment_length=50)
        .training(train_batch_size_per_learner=100, minibatch_size=50, num_epochs=1)
    )


def test_a_forger_does_not_reach_env_runners(build: Any, server: EmbeddedServer) -> None:
    """What was signed is applied; what a forger wrote under the learner's own name is not, and the
    learner goes on above it.
    """
    algo = build(with_redis_state(ppo(), server.url, signed=True))
    algo.train()
    before = published(algo)
    assert_runners_hold(algo.env_runner_group, before, expected=1)
    publisher = algo.redis_state_sync.publisher
    # Its heartbeat would take over again before the EnvRunner has met the forged version.
    publisher._heartbeat_s, publisher._next_beat = 3600.0, time.monotonic() + 3600.0
    namespace, writer = publisher.keys.namespace, publisher.writer.id
    reader = StateSubscriber(open_store(server.url), namespace, keyring=Keyring(lambda: KEY))
    snapshot = reader.fetch(timeout=20)
    assert snapshot is not None
    assert snapshot.version == before["version"]
    weights = "rl_module/default_policy"
    zeros = {name: np.zeros_like(value) for name, value in snapshot[weights].items()}
    # What a forger has who can read and write, but has no key. (One that is wrong for everybody.)
    forged = {**snapshot, weights: zeros}
    with closing(
        StatePublisher(
            open_store(server.url),
            namespace,
            writer_id=writer,
            keyring=Keyring(lambda: "forged" + KEY),
        )
    ) as forger:
        version = forger.publish(forged).wait(20)
        (runner,) = algo.env_runner_group.foreach_env_runner(sampled, local_env_runner=False)
        assert runner["version"] == before["version"]
        assert runner["largest_weight"] > 0
    result = algo.train()
    after = published(algo)
    assert after["version"] > version > before["version"]
    assert_runners_hold(algo.env_runner_group, after, expected=1)
    failures = result["env_runners"]["redis_state"]["num_failures_lifetime"]
    assert failures["signature"] >= 1
    algo.stop()


def sampled(runner: Any) -> dict[str, Any]:
    runner.sample(num_timesteps=5)
    weights = runner.module.get_state().values()
    return {
        "version": runner.redis_state_version,
        "largest_weight": max(float(np.abs(value).max()) for value in weights),
    }


def test_signed_without_a_key(
    build: Any, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """signed=True without a key is an error at start that names the remedy."""
    monkeypatch.delenv(KEY_FILE_ENV)
    monkeypatch.delenv(KEY_ENV, raising=False)
    assert KEY_FILE_ENV not in os.environ
    with pytest.raises(SettingsError, match=KEY_FILE_ENV):
        build(with_redis_state(ppo().env_runners(num_env_runners=0), server.url, signed=True))
