"""The store goes away and comes back while RLlib trains."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from ray.rllib.algorithms.appo import APPOConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner

from redis_state_sync.embedded import EmbeddedServer
from redis_state_sync.errors import (
    EncodeError,
    SettingsError,
    StoreAuthError,
    StoreReplyError,
    StoreUnavailableError,
)
from redis_state_sync.rllib import RedisPPOConfig, RedisSingleAgentEnvRunner, with_redis_state
from tests.integration.held import PATIENT, assert_runners_hold, held, published, settle


@pytest.fixture
def fragile() -> Iterator[EmbeddedServer]:
    """A server that a test may kill."""
    with EmbeddedServer() as running:
        yield running


def ppo(config_class: Any = PPOConfig) -> Any:
    return (
        config_class()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=1, rollout_fragment_length=50)
        .training(train_batch_size_per_learner=100, minibatch_size=50, num_epochs=1)
    )


def runner_call(algo: Any, function: Any) -> Any:
    (value,) = algo.env_runner_group.foreach_env_runner(function, local_env_runner=False)
    return value


def test_ppo_trains_through_an_outage(fragile: EmbeddedServer, build: Any) -> None:
    """While the store is down Ray pushes, EnvRunners stay on policy, and never go back. C4"""
    algo = build(with_redis_state(ppo(), fragile.url, **PATIENT))
    algo.train()
    before = published(algo)
    fragile.kill()
    for _ in range(3):
        result = algo.train()
    assert result["redis_state"]["num_pushes_lifetime"] >= 3
    assert result["redis_state"]["store_is_up"] is False
    assert sum(result["redis_state"]["num_failures_lifetime"].values()) >= 1
    sync = algo.redis_state_sync
    runner = runner_call(algo, _read)
    assert runner["version"] > before["version"]
    assert runner["seq_no"] == sync._latest_seq_no
    for name, value in runner["weights"].items():
        assert np.array_equal(value, sync._latest["rl_module/default_policy"][name])
    fragile.start()  # It comes back empty.
    algo.train()
    deadline = time.monotonic() + 10
    while not sync.publisher.healthy and time.monotonic() < deadline:
        time.sleep(0.05)
    result = algo.train()
    state = published(algo)
    assert state["version"] > runner["version"]
    assert_runners_hold(algo.env_runner_group, state, expected=1)
    assert result["redis_state"]["store_is_up"] is True


def _read(runner: Any) -> dict[str, Any]:
    return {
        "version": runner.redis_state_version,
        "seq_no": runner._weights_seq_no,
        "weights": {k: np.array(v) for k, v in runner.module.get_state().items()},
    }


def test_appo_trains_through_an_outage(fragile: EmbeddedServer, build: Any) -> None:
    """An asynchronous algorithm neither waits for a store that is down nor loses its EnvRunners."""
    config = (
        APPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=1, rollout_fragment_length=25)
        .training(train_batch_size_per_learner=100)
        .reporting(min_time_s_per_iteration=1)
    )
    algo = build(with_redis_state(config, fragile.url))
    before = algo.train()
    fragile.kill()
    for _ in range(30):  # How much happens in an iteration of a second depends on the machine.
        during = algo.train()
        if during["redis_state"]["num_pushes_lifetime"] > 1:
            break
    assert during["num_env_steps_sampled_lifetime"] > before["num_env_steps_sampled_lifetime"]
    assert during["fault_tolerance"]["num_remote_worker_restarts"] == 0
    assert during["redis_state"]["num_pushes_lifetime"] > 1
    fragile.start()
    deadline = time.monotonic() + 10
    while not algo.redis_state_sync.publisher.healthy and time.monotonic() < deadline:
        time.sleep(0.05)
    algo.train()
    state = settle(algo)
    assert_runners_hold(algo.env_runner_group, state, expected=1)


@pytest.mark.parametrize("fault", ["kill", "freeze"])
def test_sampling_hardly_waits(fragile: EmbeddedServer, build: Any, fault: str) -> None:
    """Ten sample() calls lose less than 0.6 s in all to a store that is gone or frozen. C4 C72"""
    import os
    import signal

    algo = build(with_redis_state(ppo(), fragile.url))
    algo.train()
    pid = fragile.pid
    assert pid is not None
    if fault == "kill":
        fragile.kill()
    else:
        os.kill(pid, signal.SIGSTOP)
    try:
        lost = runner_call(algo, _time_refreshes)
    finally:
        if fault == "freeze":
            os.kill(pid, signal.SIGCONT)
    assert lost < 0.6


def _time_refreshes(runner: Any) -> float:
    lost = 0.0
    for _ in range(10):
        started = time.perf_counter()
        runner.refresh_redis_state()
        lost += time.perf_counter() - started
        runner.sample(num_timesteps=10)
    return lost


def test_without_fallback(fragile: EmbeddedServer, build: Any) -> None:
    """With fallback_to_push=False a synchronous algorithm stops rather than sample off-policy."""
    config = with_redis_state(ppo(), fragile.url, fallback_to_push=False, publish_timeout_s=1.0)
    algo = build(config)
    algo.train()
    fragile.kill()
    with pytest.raises(TimeoutError, match="was not stored within 1 s"):
        algo.train()
    assert algo.redis_state_sync.num_pushes == 0


def test_rejected_state_leaves_the_env_runner_whole(server: EmbeddedServer, build: Any) -> None:
    """Weights of another shape are refused as a whole; a later good version is applied. C14 C44"""
    algo = build(with_redis_state(ppo(), server.url))
    algo.train()
    runner_call(algo, lambda r: None)  # Until it has looked for the newest version, as it was told.
    good = published(algo)
    publisher = algo.redis_state_sync.publisher
    weights = good["rl_module/default_policy"]
    # All but the last parameter fit, so that a half-done load would show.
    wrong = {**{k: v + 1 for k, v in weights.items()}}
    last = list(wrong)[-1]
    wrong[last] = np.zeros((1, 2, 3), np.float32)
    publisher.publish({"rl_module/default_policy": wrong}).wait(5)
    failures = runner_call(algo, _sample_and_count_apply_failures)
    assert failures == 1
    (runner,) = held(algo.env_runner_group)
    assert runner["version"] == good["version"]
    for name, value in runner["rl_module/default_policy"].items():
        assert np.array_equal(value, weights[name])
    # Not fetched again and again.
    assert runner_call(algo, _sample_and_count_apply_failures) == 1
    publisher.publish({"rl_module/default_policy": weights}).wait(5)
    runner_call(algo, lambda r: r.refresh_redis_state())
    assert_runners_hold(algo.env_runner_group, published(algo), expected=1)


def _sample_and_count_apply_failures(runner: Any) -> int:
    runner.sample(num_timesteps=3)
    key = ("redis_state", "num_failures_lifetime", "apply")
    return int(runner.metrics.peek(key, default=0))


# ---- wrong at start: each a clear error ----


class MySingleAgentEnvRunner(RedisSingleAgentEnvRunner):
    """A user's own class."""


class Hoarder(ConnectorV2):
    """A connector with a set in its state, which no codec knows."""

    def __call__(self, *, batch: Any, **kwargs: Any) -> Any:
        return batch

    def get_state(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return {"cache": {1, 2, 3}}

    def set_state(self, state: dict[str, Any]) -> None:
        pass

    def merge_states(self, states: list[dict[str, Any]]) -> dict[str, Any]:
        return states[0]


def test_unserialisable_connector_state(server: EmbeddedServer, build: Any) -> None:
    """A connector state that can not be published is refused at start; the path names it."""
    config = ppo().env_runners(env_to_module_connector=lambda env, spaces, device: Hoarder())
    with pytest.raises(EncodeError, match=r"env_to_module_connector/Hoarder/cache: set"):
        build(with_redis_state(config, server.url, namespace="bad-connector"))
    import redis

    client = redis.Redis(unix_socket_path=str(server.socket_path))
    assert not list(client.scan_iter("rss:{bad-connector}:blob:*"))


class WithoutMixin(SingleAgentEnvRunner):
    """A user's own class that would not follow anything."""


def test_custom_env_runner_without_mixin(server: EmbeddedServer, build: Any) -> None:
    """An EnvRunner class without the mixin is refused, set before or after with_redis_state."""
    config = ppo().env_runners(env_runner_cls=WithoutMixin)
    with pytest.raises(SettingsError, match=r"class WithoutMixin\(RedisEnvRunnerMixin, "):
        with_redis_state(config, server.url)
    assert not hasattr(config, "redis_state_settings")
    assert config.callbacks_on_algorithm_init is None
    config = with_redis_state(ppo(), server.url).env_runners(env_runner_cls=WithoutMixin)
    with pytest.raises(SettingsError, match=r"class WithoutMixin\(RedisEnvRunnerMixin, "):
        build(config)


def test_multi_agent_after_with_redis_state(server: EmbeddedServer, build: Any) -> None:
    """.multi_agent() and .callbacks() after with_redis_state are taken into account."""
    from ray.rllib.examples.envs.classes.multi_agent import MultiAgentCartPole

    config = with_redis_state(ppo(), server.url)
    config.environment(MultiAgentCartPole, env_config={"num_agents": 2})
    config.multi_agent(policies={"p0", "p1"}, policy_mapping_fn=lambda a, e, **k: f"p{a}")
    config.callbacks(on_algorithm_init=lambda **kwargs: None)
    algo = build(config)
    algo.train()
    assert_runners_hold(algo.env_runner_group, published(algo), expected=1)


def test_single_agent_class_for_multi_agent_config(build: Any, server: EmbeddedServer) -> None:
    """A single-agent class that a user set for a multi-agent config is refused, with a remedy."""
    from ray.rllib.examples.envs.classes.multi_agent import MultiAgentCartPole

    config = with_redis_state(ppo(), server.url)
    config.environment(MultiAgentCartPole, env_config={"num_agents": 2})
    config.multi_agent(policies={"p0", "p1"}, policy_mapping_fn=lambda a, e, **k: f"p{a}")
    config.env_runners(env_runner_cls=MySingleAgentEnvRunner)
    with pytest.raises(SettingsError, match="derive it from MultiAgentEnvRunner"):
        build(config)


def test_memory_store_with_remote_env_runners(build: Any) -> None:
    """memory:// with remote EnvRunners is refused at start, and works without."""
    with pytest.raises(SettingsError, match="lives in one process"):
        build(with_redis_state(ppo(), "memory://rllib"))
    algo = build(with_redis_state(ppo().env_runners(num_env_runners=0), "memory://rllib"))
    algo.train()
    assert published(algo)["version"].number > 1


@pytest.mark.parametrize(
    ("url", "error", "message"),
    [
        ("redis://127.0.0.1:1", StoreUnavailableError, "redis://127.0.0.1:1/0"),
        ("redis://no-such-host.invalid", StoreUnavailableError, "no-such-host.invalid"),
        ("unix:///no/such.sock", StoreUnavailableError, "/no/such.sock"),
    ],
)
def test_unreachable(build: Any, url: str, error: type[Exception], message: str) -> None:
    """A wrong host or port fails at start, within the connect timeout, and names the server. C33"""
    started = time.monotonic()
    with pytest.raises(error, match=message):
        build(with_redis_state(ppo().env_runners(num_env_runners=0), url))
    assert time.monotonic() - started < 20


def test_not_a_redis_server(build: Any) -> None:
    """A port on which something else answers fails at start with a hint. C33"""
    import http.server
    import threading

    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as web:
        threading.Thread(target=web.serve_forever, daemon=True).start()
        url = f"redis://127.0.0.1:{web.server_port}"
        with pytest.raises((StoreReplyError, StoreUnavailableError), match=r"127\.0\.0\.1"):
            build(with_redis_state(ppo().env_runners(num_env_runners=0), url))
        web.shutdown()


SECRETS = {"right": "right-secret", "wrong": "wrong-secret"}


def _shown(error: BaseException) -> str:
    """All that a traceback printer could show, local variables of every frame included."""
    shown = traceback.TracebackException.from_exception(error, capture_locals=True)
    return "".join(shown.format())


def test_wrong_password(build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong password fails at start; the message has the server and neither password."""
    with EmbeddedServer(password=SECRETS["right"]) as locked:
        monkeypatch.setenv("REDIS_STATE_SYNC_PASSWORD", SECRETS["wrong"])
        with pytest.raises(StoreAuthError) as caught:
            build(with_redis_state(ppo().env_runners(num_env_runners=0), locked.url))
        assert str(locked.socket_path) in str(caught.value)
        shown = _shown(caught.value)
        assert not [secret for secret in SECRETS.values() if secret in shown]
        monkeypatch.setenv("REDIS_STATE_SYNC_PASSWORD", SECRETS["right"])
        algo = build(
            RedisPPOConfig()
            .environment("CartPole-v1")
            .env_runners(num_env_runners=0)
            .redis_state(url=locked.url)
        )
        assert published(algo)["version"].number == 1
