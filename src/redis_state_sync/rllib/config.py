"""The ways to configure RLlib: `with_redis_state` for any config, classes for the usual ones."""

from __future__ import annotations

import copyreg
import functools
from typing import Any, TypeVar

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.appo import APPOConfig
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.algorithms.ppo import PPOConfig

from redis_state_sync.rllib.config_mixin import (
    RedisStateConfigMixin,
    attach,
    check_algorithm_config,
    check_not_frozen,
)
from redis_state_sync.settings import Settings

ConfigT = TypeVar("ConfigT", bound=AlgorithmConfig)


class RedisPPOConfig(RedisStateConfigMixin, PPOConfig):
    """`PPOConfig` with `.redis_state(url=..., namespace=..., ...)`."""


class RedisIMPALAConfig(RedisStateConfigMixin, IMPALAConfig):
    """`IMPALAConfig` with `.redis_state(url=..., namespace=..., ...)`."""


class RedisAPPOConfig(RedisStateConfigMixin, APPOConfig):
    """`APPOConfig` with `.redis_state(url=..., namespace=..., ...)`."""


def with_redis_state(
    config: ConfigT, url: str | None = None, *, namespace: str | None = None, **settings: Any
) -> ConfigT:
    """Makes any AlgorithmConfig, of any Algorithm, sync its EnvRunners through Redis.

    The config gets the abilities of `RedisStateConfigMixin`: what `.multi_agent()`, `.callbacks()`
    or `.env_runners()` change afterwards is taken into account when the Algorithm is built.

    Args:
        config: Changed in place.
        url: See `Settings`; None: the environment variable REDIS_STATE_SYNC_URL.
        namespace: See `Settings`; None: the trial's own.
        **settings: See `Settings`.

    Returns:
        The same config.

    Raises:
        SettingsError: If a setting is wrong or the config can not work with it. The config is as
            it was.
    """
    chosen = Settings.create(url=url, namespace=namespace, **settings)
    check_algorithm_config(config)
    check_not_frozen(config)
    attach(config, chosen)
    if not isinstance(config, RedisStateConfigMixin):
        # The class, not the object: RLlib builds its own copies from class and attributes.
        config.__class__ = _with_mixin(type(config))
    return config


@functools.cache
def _with_mixin(base: type) -> type:
    """The class with the mixin: one of the above, or one made here."""
    for known in (RedisPPOConfig, RedisIMPALAConfig, RedisAPPOConfig):
        if known.__bases__[1] is base:
            return known
    body = {"__doc__": base.__doc__, "__module__": __name__}
    made = type(f"Redis{base.__name__}", (RedisStateConfigMixin, base), body)
    # No module has the class, so pickle could not find it: it is made again where it arrives.
    copyreg.pickle(made, lambda config: (_revived, (base, config.__dict__)))
    return made


def _revived(base: type, state: dict[str, Any]) -> Any:
    config: Any = object.__new__(_with_mixin(base))
    config.__dict__.update(state)
    return config
