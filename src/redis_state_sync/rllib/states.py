"""RLlib's EnvRunner states as components, and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import ray
from ray.rllib.core import (
    COMPONENT_ENV_TO_MODULE_CONNECTOR,
    COMPONENT_MODULE_TO_ENV_CONNECTOR,
    COMPONENT_RL_MODULE,
    DEFAULT_MODULE_ID,
)
from ray.rllib.utils.metrics import NUM_ENV_STEPS_SAMPLED_LIFETIME, WEIGHTS_SEQ_NO

from redis_state_sync import components as names
from redis_state_sync.errors import DecodeError
from redis_state_sync.snapshot import Snapshot

CONNECTORS = (COMPONENT_ENV_TO_MODULE_CONNECTOR, COMPONENT_MODULE_TO_ENV_CONNECTOR)
# A learner's own business, and possibly a function.
_NOT_FOR_ENV_RUNNERS = {"should_module_be_updated"}
_EXTRA = "extra/"
_CHECKED_ELSEWHERE = {
    COMPONENT_RL_MODULE,
    *CONNECTORS,
    NUM_ENV_STEPS_SAMPLED_LIFETIME,
    WEIGHTS_SEQ_NO,
}


def resolved(state: Any) -> dict[str, Any]:
    """The state itself if it is an ObjectRef; its weights may still be one."""
    return dict(ray.get(state) if isinstance(state, ray.ObjectRef) else state)


def to_components(
    state: Mapping[str, Any], *, multi_agent: bool
) -> tuple[dict[str, Any], int | None]:
    """Takes an EnvRunner state apart.

    Args:
        state: As `EnvRunnerGroup` passes it to `EnvRunner.set_state`. Parts may be absent.
        multi_agent: Whether weights are always keyed by module id.

    Returns:
        Component name -> tree, and `WEIGHTS_SEQ_NO` or None.
    """
    components: dict[str, Any] = {}
    seq_no: int | None = None
    for key, value in state.items():
        if isinstance(value, ray.ObjectRef):
            value = ray.get(value)
        if key == COMPONENT_RL_MODULE:
            by_module = multi_agent or DEFAULT_MODULE_ID in value
            modules = value if by_module else {DEFAULT_MODULE_ID: value}
            components.update({names.rl_module(mid): module for mid, module in modules.items()})
        elif key in CONNECTORS:
            components[key] = value
        elif key == NUM_ENV_STEPS_SAMPLED_LIFETIME:
            components[names.COUNTERS] = {key: value}
        elif key == WEIGHTS_SEQ_NO:
            seq_no = int(value)
        elif key not in _NOT_FOR_ENV_RUNNERS:
            components[_EXTRA + key] = value
    return components, seq_no


def modules_in(component_names: Iterable[str]) -> dict[str, str]:
    """Module id -> component name, of the components that hold weights."""
    prefix = names.rl_module("")
    return {n.removeprefix(prefix): n for n in component_names if names.is_weights(n)}


def from_components(
    components: Mapping[str, Any], seq_no: int | None, *, modules: Iterable[str] | None = None
) -> dict[str, Any]:
    """Puts an EnvRunner state together.

    Args:
        components: Component name -> tree.
        seq_no: `WEIGHTS_SEQ_NO`; left out if None or if there are no weights.
        modules: Names of the components to take weights of; None: all.

    Raises:
        DecodeError: If the counters are none, or a name stands for something else.
    """
    state: dict[str, Any] = {}
    weights = modules_in(components if modules is None else modules)
    if weights:
        state[COMPONENT_RL_MODULE] = {mid: components[name] for mid, name in weights.items()}
        if seq_no is not None:
            state[WEIGHTS_SEQ_NO] = seq_no
    for name in components:
        if name in CONNECTORS:
            state[name] = components[name]
        elif name == names.COUNTERS:
            state.update(_checked_counters(components[name]))
        elif name.startswith(_EXTRA):
            key = name.removeprefix(_EXTRA)
            if key in _CHECKED_ELSEWHERE:
                raise DecodeError(f"component {name!r} would stand in for another")
            state[key] = components[name]
    return state


def _checked_counters(counters: Any) -> dict[str, Any]:
    """Refuses what would stand in for another part of a state, or break `sample()` much later."""
    if not isinstance(counters, dict) or counters.keys() - {NUM_ENV_STEPS_SAMPLED_LIFETIME}:
        raise DecodeError(f"component {names.COUNTERS!r} holds something else than its counter")
    for count in counters.values():
        number = isinstance(count, (int, float, np.integer, np.floating))
        if not number or not 0 <= count < 1 << 63:
            raise DecodeError(f"component {names.COUNTERS!r} holds something that is no count")
    return counters


def from_snapshot(snapshot: Snapshot, weights: Mapping[str, Any]) -> dict[str, Any]:
    """An EnvRunner state with the given weights and all the rest of a version.

    The rest is always there, also unchanged: connectors go on changing within an EnvRunner, and
    Ray, too, sets them back to the common state with each sync.

    Args:
        snapshot: The version.
        weights: Module id -> weights, of the modules to set.

    Raises:
        DecodeError: If a component can not be decoded, or stands for something else.
    """
    return from_components(snapshot, None, modules=()) | weights_only(snapshot, weights)


def weights_only(snapshot: Snapshot, weights: Mapping[str, Any]) -> dict[str, Any]:
    """An EnvRunner state with the given weights and their `WEIGHTS_SEQ_NO`; empty without any."""
    if not weights:
        return {}
    state: dict[str, Any] = {COMPONENT_RL_MODULE: dict(weights)}
    if snapshot.weights_seq_no is not None:
        state[WEIGHTS_SEQ_NO] = snapshot.weights_seq_no
    return state
