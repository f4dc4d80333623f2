"""The two callbacks by which an Algorithm gets its side of it. Functions, so that they pickle."""

from __future__ import annotations

import logging
from typing import Any

from ray.rllib.utils.metrics import LEARNER_RESULTS

from redis_state_sync.errors import SettingsError
from redis_state_sync.rllib.env_runners import SETTINGS_ATTRIBUTE
from redis_state_sync.rllib.follower_sync import FollowerSync
from redis_state_sync.rllib.learner_sync import LearnerSync
from redis_state_sync.rllib.metrics import REDIS_STATE, summarise_lags
from redis_state_sync.settings import Settings

logger = logging.getLogger("redis_state_sync")

_SYNC_ATTRIBUTE = "redis_state_sync"


def on_algorithm_init(*, algorithm: Any, **_: Any) -> None:
    """Runs at the end of `Algorithm.setup()`, before anyone samples.

    A learner takes over and publishes; a follower waits for a version.
    """
    settings = getattr(algorithm.config, SETTINGS_ATTRIBUTE, None)
    if not isinstance(settings, Settings):
        raise SettingsError("the config lost its redis_state_settings; call with_redis_state again")
    # An offline algorithm's follower may have EnvRunners for evaluation alone.
    if not (algorithm.env_runner_group or (settings.follows and algorithm.eval_env_runner_group)):
        logger.warning("redis_state does nothing for an Algorithm that has no EnvRunners")
        return
    sync = FollowerSync if settings.follows else LearnerSync
    setattr(algorithm, _SYNC_ATTRIBUTE, sync(algorithm, settings))


def on_train_result(*, algorithm: Any, result: dict[str, Any], **_: Any) -> None:
    """Runs at the end of `Algorithm.train()`: adds ``redis_state`` to the result."""
    sync = getattr(algorithm, _SYNC_ATTRIBUTE, None)
    if sync is not None:
        sync.iteration_ends()
        result[REDIS_STATE] = sync.results()
        summarise_lags(result.get(LEARNER_RESULTS))
