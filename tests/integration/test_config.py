"""Settings travel with an AlgorithmConfig through everything that RLlib and Tune do to it."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from typing import Any

import cloudpickle
import pytest
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.appo import APPOConfig
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.algorithms.ppo import PPO, PPOConfig
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner

from redis_state_sync import Settings, SettingsError
from redis_state_sync.rllib import (
    RedisAPPOConfig,
    RedisEnvRunnerMixin,
    RedisIMPALAConfig,
    RedisMultiAgentEnvRunner,
    RedisPPOConfig,
    RedisSingleAgentEnvRunner,
    RedisStateConfigMixin,
    with_redis_state,
)
from redis_state_sync.rllib.hooks import on_algorithm_init, on_train_result

URL = "redis://store.example:6379/0"
CONFIGS = [PPOConfig, APPOConfig, IMPALAConfig, DQNConfig]


def assert_attached(config: Any, **settings: Any) -> None:
    assert config.redis_state_settings == Settings(**{"url": URL, **settings})
    assert config.env_runner_cls is RedisSingleAgentEnvRunner
    assert config.use_env_runner_state_server is False
    assert on_algorithm_init in config.callbacks_on_algorithm_init
    assert on_train_result in config.callbacks_on_train_result


@pytest.mark.parametrize("config_class", CONFIGS)
def test_in_place_for_any_config(config_class: Any) -> None:
    """with_redis_state changes the very config that it is given, of any algorithm."""
    config = config_class().environment("CartPole-v1")
    assert with_redis_state(config, URL, namespace="n", history=2) is config
    assert isinstance(config, config_class)
    assert_attached(config, namespace="n", history=2)
    # Twice is as good as once.
    assert_attached(with_redis_state(config, URL))
    assert len(config.callbacks_on_algorithm_init) == 1


@pytest.mark.parametrize("config_class", CONFIGS)
@pytest.mark.parametrize(
    "travel",
    [
        lambda c: c.copy(),
        copy.deepcopy,
        lambda c: pickle.loads(cloudpickle.dumps(c)),
        lambda c: AlgorithmConfig.from_state(c.get_state()),
        lambda c: AlgorithmConfig.from_state(pickle.loads(cloudpickle.dumps(c.get_state()))),
        lambda c: type(c).from_dict(c.to_dict()),
        lambda c: c.algo_class.get_default_config().update_from_dict(c.to_dict()),  # Tune's way
    ],
    ids=["copy", "deepcopy", "pickle", "state", "checkpoint", "from_dict", "tune"],
)
def test_travels(config_class: Any, travel: Any) -> None:
    """Settings, EnvRunner class and hooks survive every way in which a config travels. C89 C91"""
    config = with_redis_state(config_class().environment("CartPole-v1"), URL)
    travelled = travel(config)
    assert_attached(travelled)
    travelled.validate()
    travelled.freeze()
    assert_attached(travelled)


def test_evaluation_config() -> None:
    """The config for evaluation has the same settings; overrides of others leave them alone."""
    config = with_redis_state(PPOConfig().environment("CartPole-v1"), URL).evaluation(
        evaluation_interval=1, evaluation_config=RedisPPOConfig.overrides(explore=False)
    )
    evaluation = config.get_evaluation_config_object()
    evaluation.validate()
    assert_attached(evaluation)
    assert evaluation.explore is False


@pytest.mark.parametrize("config_class", [RedisPPOConfig, RedisIMPALAConfig, RedisAPPOConfig])
def test_fluent(config_class: Any) -> None:
    """.redis_state() changes what it is given and keeps the rest; built when validated."""
    config = config_class().redis_state(url=URL, history=7).redis_state(namespace="n")
    config.environment("CartPole-v1").validate()
    assert_attached(config, history=7, namespace="n")


def test_from_dict_and_overrides() -> None:
    """A dict of settings in from_dict, overrides or Tune's param_space is as good as Settings."""
    config = RedisAPPOConfig.from_dict({"redis_state_settings": {"url": URL}, "env": "CartPole-v1"})
    config.validate()
    assert_attached(config)
    overrides = RedisAPPOConfig.overrides(redis_state_settings={"url": URL, "history": 9})
    config = RedisAPPOConfig().environment("CartPole-v1").update_from_dict(overrides)
    config.validate()
    assert_attached(config, history=9)


def test_decides_late() -> None:
    """What .multi_agent() and .callbacks() change afterwards is taken into account."""
    config = with_redis_state(PPOConfig().environment("CartPole-v1"), URL)
    mine: list[Any] = []
    config.callbacks(RLlibCallback, on_algorithm_init=lambda **kw: mine.append(kw))
    config.multi_agent(policies={"a", "b"}, policy_mapping_fn=lambda *a, **k: "a")
    assert config.to_dict()["env_runner_cls"] is RedisMultiAgentEnvRunner
    config.validate()
    assert config.env_runner_cls is RedisMultiAgentEnvRunner
    assert config.callbacks_on_algorithm_init[0] is on_algorithm_init
    assert len(config.callbacks_on_algorithm_init) == 2


def test_own_config_class() -> None:
    """The mixin makes a fluent class of any config class."""

    class RedisDQNConfig(RedisStateConfigMixin, DQNConfig):
        pass

    config = RedisDQNConfig().redis_state(url=URL).environment("CartPole-v1")
    config.validate()
    assert_attached(config)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"url": "http://host"}, "unknown scheme"),
        ({"url": "redis://:pw-in-url@host"}, "REDIS_STATE_SYNC_PASSWORD_FILE"),
        ({"url": "redis://host?password=pw-in-url"}, "REDIS_STATE_SYNC_PASSWORD_FILE"),
        ({"url": URL, "histroy": 3}, "unknown setting 'histroy'; known are .*history"),
        ({"url": URL, "history": 0}, "history must be an int of at least 1"),
        ({"url": URL, "namespace": "a{b}"}, "namespace 'a{b}' is not valid"),
        ({"url": URL, "mode": "maybe"}, "mode must be"),
    ],
)
@pytest.mark.parametrize("way", ["function", "fluent", "dict"])
def test_bad_settings(way: str, settings: dict[str, Any], message: str) -> None:
    """A bad setting is refused by name; the config is as it was, and no password is shown. C96"""
    config = PPOConfig() if way == "function" else RedisPPOConfig()
    before = config.to_dict()
    ways: dict[str, Any] = {
        "function": lambda: with_redis_state(config, **settings),
        "fluent": lambda: config.redis_state(**settings),
        "dict": RedisPPOConfig.from_dict({"redis_state_settings": settings}).validate,
    }
    with pytest.raises(SettingsError, match=message) as caught:
        ways[way]()
    assert "pw-in-url" not in repr(caught.value)
    after = config.to_dict()
    assert {k: repr(v) for k, v in after.items()} == {k: repr(v) for k, v in before.items()}
    assert type(config) is (PPOConfig if way == "function" else RedisPPOConfig)


@pytest.mark.parametrize(
    ("what", "name"), [({}, "a dict"), (PPOConfig, "PPOConfig"), (PPO, "PPO"), (None, "a NoneType")]
)
def test_what_is_no_config(what: Any, name: str) -> None:
    """Anything but a config object is refused by what it is: a class is not its object."""
    with pytest.raises(SettingsError, match=f"takes an AlgorithmConfig.* not {name}$"):
        with_redis_state(what, URL)


@pytest.mark.parametrize(
    "change", [lambda c: with_redis_state(c, URL), lambda c: c.redis_state(url=URL)]
)
def test_frozen_configs(change: Callable[[Any], Any]) -> None:
    """The config of a built Algorithm can not be changed; the message says what can be."""
    config = RedisPPOConfig().environment("CartPole-v1")
    config.freeze()
    with pytest.raises(SettingsError, match=r"frozen.*copy_frozen=False"):
        change(config)
    change(config.copy(copy_frozen=False))


class Late(SingleAgentEnvRunner, RedisEnvRunnerMixin):
    """Polls never: RLlib's own `sample` comes first."""


@pytest.mark.parametrize("late", [False, True])
def test_a_mixin_that_would_never_poll(late: bool) -> None:
    """The mixin behind RLlib's class is refused, whenever it is set, with the right order."""
    config = PPOConfig().environment("CartPole-v1")
    if not late:
        config.env_runners(env_runner_cls=Late)
    with pytest.raises(SettingsError, match=r"class Late\(RedisEnvRunnerMixin, SingleAgent"):
        with_redis_state(config, URL).env_runners(env_runner_cls=Late).validate()


@pytest.mark.parametrize("how", [pickle, cloudpickle])
def test_a_class_made_here_is_pickled(how: Any) -> None:
    """Configs of any algorithm survive plain pickle as well as Ray's, class and settings."""
    config = with_redis_state(DQNConfig().environment("CartPole-v1"), URL, history=7)
    other = how.loads(how.dumps(config))
    assert type(other) is type(config)
    assert type(other).__name__ == "RedisDQNConfig"
    assert_attached(other, history=7)


def test_old_api_stack() -> None:
    """A config of RLlib's old API stack is refused with the call that turns on the new one."""
    config = PPOConfig().api_stack(
        enable_rl_module_and_learner=False, enable_env_runner_and_connector_v2=False
    )
    with pytest.raises(SettingsError, match="enable_rl_module_and_learner=True"):
        with_redis_state(config, URL)


def test_settings_are_plain_in_json() -> None:
    """Tune writes params.json by falling back to str(): readable, and without secrets."""
    config = with_redis_state(PPOConfig().environment("CartPole-v1"), URL)
    text = json.dumps(config.to_dict(), default=str)
    assert "redis://store.example:6379/0" in text


def follower(config_class: Any = APPOConfig, **settings: Any) -> Any:
    settings = {"namespace": "n", "role": "follower", **settings}
    config = config_class().environment("CartPole-v1").learners(num_learners=2)
    config.learners(num_gpus_per_learner=1, num_aggregator_actors_per_learner=1)
    return with_redis_state(config, URL, **settings)


def test_a_follower_starts_no_learner_actors() -> None:
    """A training job's config made a follower's asks for no learner actor, and for no GPU."""
    config = follower()
    for made in (config, PPOConfig.from_dict(follower(PPOConfig).to_dict())):
        assert (made.num_learners, made.num_gpus_per_learner) == (0, 0)
        assert made.num_aggregator_actors_per_learner == 0
        assert made.redis_state_settings.follows
    assert with_redis_state(PPOConfig().learners(num_learners=2), URL).num_learners == 2


@pytest.mark.parametrize("travel", [copy.deepcopy, lambda c: pickle.loads(pickle.dumps(c))])
def test_the_role_travels(travel: Any) -> None:
    """Copied or pickled, a follower's config stays one, with the seconds that it waits."""
    config = travel(follower(first_version_timeout_s=7.0))
    assert config.redis_state_settings.role == "follower"
    assert config.redis_state_settings.first_version_timeout_s == 7.0


def test_a_follower_may_refresh_in_flight_with_any_algorithm() -> None:
    """Nobody trains on what a follower samples, so weights may change within a sample()."""
    assert follower(PPOConfig, refresh="steps").redis_state_settings.in_flight


def test_a_follower_of_an_embedded_server() -> None:
    """A server without an address can not be followed from elsewhere: the error says what can."""
    config = PPOConfig().environment("CartPole-v1")
    with pytest.raises(SettingsError, match=r"embedded://10.0.0.5:6390"):
        with_redis_state(config, "embedded://", namespace="n", role="follower")
    assert not isinstance(config, RedisStateConfigMixin)
    with_redis_state(config, "embedded://10.0.0.5:6390", namespace="n", role="follower")


def test_a_follower_evaluates_for_so_long() -> None:
    """An evaluation as long as a training iteration has no end where nobody trains: refused."""
    config = PPOConfig().evaluation(
        evaluation_num_env_runners=1,
        evaluation_interval=1,
        evaluation_duration="auto",
        evaluation_parallel_to_training=True,
    )
    with pytest.raises(SettingsError, match="give a number of episodes"):
        with_redis_state(config, URL, namespace="n", role="follower")
