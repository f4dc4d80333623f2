"""The EnvRunnerGroups of an Algorithm: whether they follow, and where their EnvRunners are."""

from __future__ import annotations

from typing import Any

import ray

from redis_state_sync.errors import SettingsError
from redis_state_sync.rllib.env_runners import follows


def groups_of(algorithm: Any) -> list[Any]:
    """The group for training and that for evaluation, as far as there are such.

    Raises:
        SettingsError: If EnvRunners of one would not follow the published state.
    """
    groups = [g for g in (algorithm.env_runner_group, algorithm.eval_env_runner_group) if g]
    for group in groups:
        cls = group.env_runner_cls
        if not follows(cls):
            raise SettingsError(
                f"env_runner_cls {cls.__name__} does not follow the published state: declare it "
                f"as class {cls.__name__}(RedisEnvRunnerMixin, ...), or set it before "
                "with_redis_state"
            )
    return groups


def runner_nodes(groups: list[Any]) -> dict[str, int]:
    """How many EnvRunners are actors, and how many of them on other nodes: for `check_reach`."""
    own = ray.get_runtime_context().get_node_id()
    nodes: list[str] = []
    for group in groups:
        if group.num_remote_env_runners():
            nodes += group.foreach_env_runner(_node_of, local_env_runner=False)
    remote = sum(group.num_remote_env_runners() for group in groups)
    return {"remote_runners": remote, "other_nodes": sum(node != own for node in nodes)}


def _node_of(_runner: Any) -> str:
    return str(ray.get_runtime_context().get_node_id())
