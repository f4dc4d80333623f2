"""Limits of staleness, where EnvRunners sample: they raise, warn or wait, and results count it."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
from ray.rllib.algorithms.ppo import PPOConfig

from redis_state_sync.embedded import EmbeddedServer
from redis_state_sync.rllib import with_redis_state
from tests.integration.held import held, published


def ppo() -> Any:
    return (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=1, rollout_fragment_length=50)
        .training(train_batch_size_per_learner=100, minibatch_size=50, num_epochs=1)
    )


def on_runner(algo: Any, func: Any) -> Any:
    """What a call on the remote EnvRunner returns; its exception is raised here."""
    (result,) = algo.env_runner_group.foreach_env_runner(func, local_env_runner=False)
    return result


def sample(runner: Any) -> str | None:
    """Samples; returns the message of a StaleStateError, for which Ray would end the EnvRunner."""
    try:
        runner.sample(num_timesteps=5)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def counted(runner: Any) -> tuple[int, float]:
    names = ("num_stale_lifetime", "stale_wait_seconds_lifetime")
    found, waited = (runner.metrics.peek(("redis_state", name), default=0) for name in names)
    return int(found), float(waited)


def test_raise_for_seconds(server: EmbeddedServer, build: Any) -> None:
    """Without a new version for too long sample() raises; other refreshes do not."""
    algo = build(with_redis_state(ppo(), server.url, max_staleness_s=2.0))
    algo.train()
    assert on_runner(algo, sample) is None
    time.sleep(2.2)
    on_runner(algo, lambda r: r.refresh_redis_state())
    says = on_runner(algo, sample)
    assert says is not None
    assert says.startswith("StaleStateError: no new version for ")
    # The local EnvRunner has no limits.
    algo.env_runner.refresh_redis_state(limits=True)


def test_versions_that_do_not_fit(server: EmbeddedServer, build: Any) -> None:
    """An EnvRunner that can not apply what is published goes on, and results count it."""
    config = with_redis_state(ppo(), server.url, max_staleness_versions=1, on_stale="warn")
    algo = build(config)
    algo.train()
    on_runner(algo, lambda r: r.refresh_redis_state())
    good = published(algo)
    wrong = {name: np.zeros((1, 2, 3), np.float32) for name in good["rl_module/default_policy"]}
    publisher = algo.redis_state_sync.publisher
    for number in (1, 2):
        publisher.publish({"rl_module/default_policy": {**wrong, "n": number}}).wait(5)
        assert on_runner(algo, sample) is None
        assert on_runner(algo, counted) == (number - 1, 0.0)
    assert held(algo.env_runner_group)[0]["version"] == good["version"]
    # What a user sees of it; and the learner's next version is a good one.
    result = algo.train()["env_runners"]["redis_state"]
    assert result["num_stale_lifetime"] >= 1
    assert result["num_failures_lifetime"]["apply"] == 2
    on_runner(algo, lambda r: r.refresh_redis_state())
    before = on_runner(algo, counted)
    assert on_runner(algo, sample) is None
    assert on_runner(algo, counted) == before


def test_wait(server: EmbeddedServer, build: Any) -> None:
    """A sample() that waits begins with the version that ends the wait; without one it raises."""
    config = with_redis_state(
        ppo(), server.url, max_staleness_s=1.5, on_stale="wait", stale_wait_s=1.0
    )
    algo = build(config)
    algo.train()
    on_runner(algo, lambda r: r.refresh_redis_state())
    time.sleep(1.6)
    weights = published(algo)["rl_module/default_policy"]
    publisher = algo.redis_state_sync.publisher
    newer = {name: array + 1 for name, array in weights.items()}
    later = threading.Timer(0.4, publisher.publish, [{"rl_module/default_policy": newer}])
    later.start()
    assert on_runner(algo, sample) is None
    later.join()
    assert held(algo.env_runner_group)[0]["version"] == publisher.last_version
    found, waited = on_runner(algo, counted)
    assert found == 1
    assert 0 < waited < 1.5
    time.sleep(1.6)
    says = on_runner(algo, sample)
    assert says is not None
    assert says.startswith("StaleStateError: waited 1.")
