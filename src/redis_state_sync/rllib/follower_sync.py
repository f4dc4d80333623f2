"""The driver's side of a follower: an Algorithm that acts with what another job's publishes."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

from redis_state_sync.errors import (
    RedisStateSyncError,
    SettingsError,
    StoreTLSError,
    StoreUnavailableError,
)
from redis_state_sync.keys import Keys
from redis_state_sync.rllib.env_runner_groups import groups_of, runner_nodes
from redis_state_sync.rllib.identity import namespace_of, writer_id_of
from redis_state_sync.rllib.stores import check_followable, check_reach, open_rllib_store
from redis_state_sync.settings import Settings
from redis_state_sync.version import Version

logger = logging.getLogger("redis_state_sync")
# Ray shows what its own loggers say at INFO, and the driver's root logger does not.
start_logger = logging.getLogger("ray.redis_state_sync")

_TRAINS = "to train, leave out role='follower'"
_CHECKPOINTS = (
    "its Learner has random weights, and what it acts with is the learner's: save and restore the "
    "learner's Algorithm, in its own job; 'redis-state-sync export' writes a version to a file"
)
# What would take a follower for a learner -> what to do instead.
_REFUSED = {
    "step": f"call evaluate(), or sample with env_runner_group.foreach_env_runner(...); {_TRAINS}",
    "training_step": _TRAINS,
    **dict.fromkeys(
        ("save_to_path", "restore_from_path", "get_state", "set_state"),
        _CHECKPOINTS,
    ),
    **dict.fromkeys(
        ("get_weights", "set_weights"),
        "its Learner has random weights: get_module() has those that it acts with",
    ),
}
# How often EnvRunners that disagree look again: a learner may publish faster than they can agree.
_ROUNDS = 3


class FollowerSync:
    """Follows for one Algorithm: it neither publishes nor takes over, and its Learner is not used.

    Args:
        algorithm: A set-up Algorithm whose EnvRunners have the mixin.
        settings: See `Settings`.

    Raises:
        SettingsError: If the store can not work for this Algorithm.
        StoreError: If the store refuses. One that is not there yet is waited for.
        FirstVersionError: If nothing is published within `first_version_timeout_s`.
        ApplyError: If what is published does not fit this Algorithm's EnvRunners.
    """

    def __init__(self, algorithm: Any, settings: Settings) -> None:
        self._algorithm = algorithm
        self.namespace = namespace_of(settings, algorithm.logdir)
        groups = groups_of(algorithm)
        check_followable(settings)
        check_reach(settings, **runner_nodes(groups))
        where = _check_store(settings, self.namespace, writer_id_of(algorithm.logdir))
        for group in groups:
            # RLlib would send the weights of a Learner that has never learnt anything.
            group.sync_weights = group.sync_env_runner_states = _send_nothing
        versions = [version for group in groups for version in _first_versions(group)]
        start_logger.info(
            "redis_state_sync follows namespace %r at %s, from version %s on",
            self.namespace,
            where,
            max(versions, default=None),
        )
        self._attach()

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """RLlib's `evaluate()`, with the newest version in all EnvRunners, from the first to last.

        Returns:
            What RLlib returns, and ``redis_state``: `version`, the newest that acted, `versions`,
            all that did, and `namespace`. There is more than one if a learner publishes faster
            than the EnvRunners can agree, or if one was restarted meanwhile; none if no EnvRunner
            was there.
        """
        algorithm = self._algorithm
        group = algorithm.eval_env_runner_group
        if group is not None:
            algorithm.restore_env_runners(group)  # `train()` does it for others.
        call = _caller(algorithm, group)
        try:
            agree(call)
            result = self._evaluate(*args, **kwargs)
        finally:
            acted = sorted({version for some in call(_release) for version in some})
        found = {
            "version": str(acted[-1]) if acted else None,
            "versions": [str(version) for version in acted],
            "namespace": self.namespace,
        }
        return {**result, "redis_state": found}

    def get_module(self, *args: Any, **kwargs: Any) -> Any:
        """RLlib's `get_module()`, of the newest version."""
        local, group = self._algorithm.env_runner, self._algorithm.env_runner_group
        if local is not None:
            local.refresh_redis_state()
        elif group is not None:  # RLlib asks the first one then.
            group.foreach_env_runner(_first_version, remote_worker_ids=[1], local_env_runner=False)
        return self._get_module(*args, **kwargs)

    def _attach(self) -> None:
        algorithm = self._algorithm
        self._evaluate, self._get_module = algorithm.evaluate, algorithm.get_module
        algorithm.evaluate, algorithm.get_module = self.evaluate, self.get_module
        for name, instead in _REFUSED.items():
            setattr(algorithm, name, functools.partial(_refuse, self.namespace, name, instead))


def _refuse(namespace: str, name: str, instead: str, *_args: Any, **_kwargs: Any) -> Any:
    call = {"step": "train"}.get(name, name)
    raise SettingsError(
        f"{call}() is not for a follower, which acts with what is published in namespace "
        f"{namespace!r}: {instead}"
    )


def _send_nothing(*_args: Any, **_kwargs: Any) -> None:
    """In place of RLlib's ways to send states to EnvRunners."""


def _check_store(settings: Settings, namespace: str, writer_id: str) -> str:
    """Asks the store once, and returns what to call it.

    Raises:
        StoreError: If waiting would not help: a wrong password, missing rights, TLS.
    """
    store = open_rllib_store(settings, writer_id)
    try:
        timeout = settings.connect_timeout_s
        store.newest(Keys(namespace), timeout=timeout)
        return f"{store.describe()} ({store.server_facts(timeout=timeout)})"
    except StoreTLSError:
        raise
    except StoreUnavailableError as error:
        logger.warning("a follower waits for its store: %s", error)
        return store.describe()
    finally:
        store.close()


def _first_versions(group: Any) -> list[Version]:
    """Waits until the EnvRunners of a group have a version.

    A local one beside remote ones is idle: it fetches when it is used, and does not stand among the
    readers as the stalest of them until then.
    """
    idle = group.num_remote_env_runners() > 0
    versions = []
    for outcome in group.foreach_env_runner(_first_version, local_env_runner=not idle):
        if isinstance(outcome, RedisStateSyncError):
            raise outcome
        versions.append(outcome)
    return versions


def _first_version(runner: Any) -> Any:
    try:
        runner.refresh_redis_state()
    except RedisStateSyncError as error:
        return error  # Raised in an actor, it would be the end of it, and not be heard of.
    return runner.redis_state_version


def _caller(algorithm: Any, group: Any) -> Callable[[Callable[[Any], Any]], list[Any]]:
    """Calls functions with each EnvRunner that `evaluate()` uses: as it chooses them."""
    if group is None:
        local = algorithm.env_runner
        return lambda function: [] if local is None else [function(local)]
    remote = group.num_remote_env_runners() > 0
    if not remote:
        return lambda function: [function(group.local_env_runner)]
    return lambda function: group.foreach_env_runner(function, local_env_runner=False)


def agree(call: Callable[[Callable[[Any], Any]], list[Version]]) -> None:
    """Has EnvRunners take the newest version and stay with it, all of them with the same."""
    held = call(_keep_newest)
    for _ in range(_ROUNDS):
        if len(set(held)) < 2:
            return
        held = call(functools.partial(_keep_newest, least=max(held)))


def _keep_newest(runner: Any, least: Version | None = None) -> Version:
    following = runner._redis_state_following
    held: Version | None = runner.redis_state_version
    if held is None or least is None or held < least:
        following.release()
        runner.refresh_redis_state(limits=True)
        following.keep()
    version: Version = runner.redis_state_version
    return version


def _release(runner: Any) -> list[Version]:
    acted: list[Version] = runner._redis_state_following.release()
    return acted
