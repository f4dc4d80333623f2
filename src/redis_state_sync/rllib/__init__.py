"""RLlib through Redis: the only part of the package that knows Ray.

Read in this order: config -> config_mixin -> hooks -> learner_sync -> group_hooks, then
env_runners -> apply; for followers follower_sync -> following.
"""

from redis_state_sync.rllib.config import (
    RedisAPPOConfig,
    RedisIMPALAConfig,
    RedisPPOConfig,
    with_redis_state,
)
from redis_state_sync.rllib.config_mixin import RedisStateConfigMixin
from redis_state_sync.rllib.env_runners import (
    RedisEnvRunnerMixin,
    RedisMultiAgentEnvRunner,
    RedisSingleAgentEnvRunner,
)

__all__ = [
    "RedisAPPOConfig",
    "RedisEnvRunnerMixin",
    "RedisIMPALAConfig",
    "RedisMultiAgentEnvRunner",
    "RedisPPOConfig",
    "RedisSingleAgentEnvRunner",
    "RedisStateConfigMixin",
    "with_redis_state",
]
