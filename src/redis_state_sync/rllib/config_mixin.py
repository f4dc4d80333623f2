"""What makes an AlgorithmConfig sync through Redis: settings, an EnvRunner class, two hooks."""

from __future__ import annotations

import logging
from typing import Any

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner
from ray.rllib.utils import force_list
from typing_extensions import Self

from redis_state_sync.errors import SettingsError
from redis_state_sync.rllib.env_runners import (
    SETTINGS_ATTRIBUTE,
    RedisMultiAgentEnvRunner,
    RedisSingleAgentEnvRunner,
    follows,
)
from redis_state_sync.rllib.hooks import on_algorithm_init, on_train_result
from redis_state_sync.rllib.identity import in_background
from redis_state_sync.rllib.stores import check_followable
from redis_state_sync.settings import Settings

logger = logging.getLogger("redis_state_sync")

_STOCK = (None, SingleAgentEnvRunner, MultiAgentEnvRunner)
_OURS = (RedisSingleAgentEnvRunner, RedisMultiAgentEnvRunner)


def attach(config: Any, settings: Settings) -> None:
    """Sets everything that travels with the config. Nothing is changed if it raises."""
    if not config.enable_env_runner_and_connector_v2 or not config.enable_rl_module_and_learner:
        raise SettingsError(
            "redis_state needs RLlib's new API stack: call config.api_stack("
            "enable_rl_module_and_learner=True, enable_env_runner_and_connector_v2=True)"
        )
    if settings.follows:
        _check_follower(config, settings)
    if settings.in_flight and not settings.follows and not in_background(settings, config):
        raise SettingsError(
            f"refresh={settings.refresh!r} changes weights within a sample(), and a synchronous "
            f"algorithm ({type(config).__name__}) expects each sample to be of one policy: leave "
            "refresh at 'sample', or set mode='async' if yours corrects for it as APPO does"
        )
    env_runner_cls = _env_runner_class(config)
    if getattr(config, "use_env_runner_state_server", False):
        logger.info("redis_state takes the place of use_env_runner_state_server, now False")
    setattr(config, SETTINGS_ATTRIBUTE, settings)
    config.use_env_runner_state_server = False
    config.env_runner_cls = env_runner_cls
    # Hooks as functions, not as a callbacks class: they survive a later .callbacks(MyCallbacks).
    for attribute, hook in (
        ("callbacks_on_algorithm_init", on_algorithm_init),
        ("callbacks_on_train_result", on_train_result),
    ):
        hooks = force_list(getattr(config, attribute))
        if hook not in hooks:
            setattr(config, attribute, [hook, *hooks])
    if settings.follows:
        # RLlib builds a learner in any case. One that never learns needs no actors and no GPU.
        config.num_learners = config.num_gpus_per_learner = 0
        config.num_aggregator_actors_per_learner = 0


def _check_follower(config: Any, settings: Settings) -> None:
    if settings.url is not None:
        check_followable(settings)
    if config.evaluation_duration == "auto":
        raise SettingsError(
            "evaluation_duration='auto' is as long as an iteration of training, and a follower "
            "does not train: give a number of episodes or timesteps"
        )


def check_algorithm_config(config: object) -> None:
    """Raises `SettingsError` for anything but an AlgorithmConfig object."""
    if not isinstance(config, AlgorithmConfig):
        what = config.__name__ if isinstance(config, type) else f"a {type(config).__name__}"
        raise SettingsError(
            f"with_redis_state takes an AlgorithmConfig, as PPOConfig() makes one, not {what}"
        )


def check_not_frozen(config: AlgorithmConfig) -> None:
    """Raises `SettingsError` for a config that can not be changed any more."""
    if config._is_frozen:
        raise SettingsError(
            "the config is frozen, as that of a built Algorithm is: set redis_state before it is "
            "built, or on config.copy(copy_frozen=False)"
        )


def _env_runner_class(config: Any) -> type:
    current = config.env_runner_cls
    if current in _STOCK or current in _OURS:
        if config.output:
            raise SettingsError(
                "redis_state can not record episodes yet: leave out config.offline_data(output=...)"
            )
        return RedisMultiAgentEnvRunner if config.is_multi_agent else RedisSingleAgentEnvRunner
    if isinstance(current, type) and follows(current):
        if config.is_multi_agent and issubclass(current, SingleAgentEnvRunner):
            raise SettingsError(
                f"the config is multi-agent, but its env_runner_cls {current.__name__} is a "
                "SingleAgentEnvRunner: derive it from MultiAgentEnvRunner"
            )
        return current
    if config.is_multi_agent:
        stock = "MultiAgentEnvRunner"
    else:
        stock = "SingleAgentEnvRunner"
    name = getattr(current, "__name__", str(current))
    raise SettingsError(
        f"env_runner_cls {name} would not follow the published state: put the mixin first among "
        f"its bases, as in class {name}(RedisEnvRunnerMixin, {stock}), from "
        "redis_state_sync.rllib"
    )


# Derived from AlgorithmConfig to have its layout: with_redis_state changes a config's class.
class RedisStateConfigMixin(AlgorithmConfig):
    """Adds the fluent `.redis_state(...)` to an AlgorithmConfig class, and decides late.

    What `.multi_agent()` or `.callbacks()` change afterwards is taken into account when the
    Algorithm is built, or when Tune turns the config into a dict. For your own config class::

        class RedisDQNConfig(RedisStateConfigMixin, DQNConfig):
            pass
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.redis_state_settings: Settings | dict[str, Any] = Settings()

    def redis_state(self, **settings: Any) -> Self:
        """Sets some of the settings; the others stay as they are.

        Args:
            **settings: See `redis_state_sync.Settings`: `url`, `namespace`, and so on.

        Raises:
            SettingsError: If a setting is unknown or wrong; nothing is changed.
        """
        check_not_frozen(self)
        self.redis_state_settings = self._checked_settings().replace(**settings)
        return self

    def validate(self) -> None:
        """As the AlgorithmConfig's, and checks ours."""
        attach(self, self._checked_settings())
        super().validate()

    def to_dict(self) -> dict[str, Any]:
        """As the AlgorithmConfig's. Tune builds a plain config from it, which needs our hooks."""
        prepared: Any = self
        if not self._is_frozen:
            prepared = self.copy(copy_frozen=False)
            attach(prepared, prepared._checked_settings())
        return super(RedisStateConfigMixin, prepared).to_dict()

    def _checked_settings(self) -> Settings:
        settings = self.redis_state_settings
        if isinstance(settings, dict):  # from_dict, overrides and Tune's param_space may give one
            return Settings.create(**settings)
        if not isinstance(settings, Settings):
            raise SettingsError(
                f"redis_state_settings must be Settings or a dict, not {type(settings).__name__}"
            )
        return settings
