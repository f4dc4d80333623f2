"""embedded://, the environment's URL, and what is said at start."""

from __future__ import annotations

import logging
import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from ray.rllib.algorithms.ppo import PPOConfig

from redis_state_sync import Settings, SettingsError
from redis_state_sync.embedded import EmbeddedServer
from redis_state_sync.rllib import RedisPPOConfig, with_redis_state
from redis_state_sync.rllib.stores import check_reach
from tests.integration.held import assert_runners_hold, published


def small(config: Any, *, runners: int = 1) -> Any:
    return (
        config.environment("CartPole-v1")
        .env_runners(num_env_runners=runners, rollout_fragment_length=50)
        .training(train_batch_size_per_learner=100, minibatch_size=50, num_epochs=1)
    )


def test_embedded(build: Any, caplog: pytest.LogCaptureFixture) -> None:
    """embedded:// starts a server that remote EnvRunners find by themselves, and that stops with
    the Algorithm; one log line says what is used.
    """
    with caplog.at_level(logging.INFO, logger="ray.redis_state_sync"):
        algo = build(with_redis_state(small(PPOConfig()), "embedded://"))
    publisher = algo.redis_state_sync.publisher
    (line,) = [r.getMessage() for r in caplog.records if "publishes to" in r.getMessage()]
    assert f"namespace '{publisher.keys.namespace}'" in line
    assert f"generation {publisher.generation}" in line
    assert f"from version {publisher.generation}-1 on" in line
    assert publisher.store.describe() in line
    assert "(Valkey " in line or "(Redis " in line
    algo.train()
    assert_runners_hold(algo.env_runner_group, published(algo), expected=1)
    path = Path(publisher.store.describe().removeprefix("unix://"))
    pid = algo.redis_state_sync._server.pid
    assert path.is_socket()
    algo.stop()
    assert not path.exists()
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}/cmdline").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_embedded_for_other_hosts(build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """embedded:// with an address listens there; open to the network only with a password."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    algo = build(with_redis_state(small(PPOConfig()), f"embedded://127.0.0.1:{port}"))
    algo.train()
    assert algo.redis_state_sync.publisher.store.describe() == f"redis://127.0.0.1:{port}/0"
    assert_runners_hold(algo.env_runner_group, published(algo), expected=1)
    algo.stop()
    monkeypatch.delenv("REDIS_STATE_SYNC_PASSWORD", raising=False)
    with pytest.raises(SettingsError, match="would be open to everyone on the network"):
        build(with_redis_state(small(PPOConfig(), runners=0), f"embedded://0.0.0.0:{port}"))


@pytest.mark.parametrize("url", ["embedded://", "unix:///run/valkey.sock"])
def test_store_of_one_host(url: str) -> None:
    """A store that other hosts can not reach is refused when EnvRunners run there."""
    settings = Settings(url=url)
    check_reach(settings, remote_runners=3, other_nodes=0)
    with pytest.raises(SettingsError, match="2 EnvRunners run on other hosts"):
        check_reach(settings, remote_runners=3, other_nodes=2)
    check_reach(Settings(url="embedded://10.0.0.5:6390"), remote_runners=3, other_nodes=2)


def test_url_from_the_environment(
    build: Any, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a URL in the config each process takes its own environment's; none is an error."""
    monkeypatch.delenv("REDIS_STATE_SYNC_URL", raising=False)
    with pytest.raises(SettingsError, match="set REDIS_STATE_SYNC_URL in the environment"):
        build(small(RedisPPOConfig(), runners=0))
    monkeypatch.setenv("REDIS_STATE_SYNC_URL", server.url)
    algo = build(small(RedisPPOConfig(), runners=0))
    assert algo.redis_state_sync.publisher.store.describe() == server.url
