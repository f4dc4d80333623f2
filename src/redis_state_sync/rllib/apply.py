"""Puts a snapshot into an EnvRunner: whole, or not at all."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from ray.rllib.core import COMPONENT_ENV_TO_MODULE_CONNECTOR, COMPONENT_MODULE_TO_ENV_CONNECTOR

from redis_state_sync.errors import ApplyError, CodecError
from redis_state_sync.rllib.alias import alias
from redis_state_sync.rllib.states import from_snapshot, weights_only
from redis_state_sync.rllib.weights import Weights, fit_weights, live_modules
from redis_state_sync.snapshot import Snapshot


def apply_snapshot(
    runner: Any, set_state: Callable[[dict[str, Any]], None], snapshot: Snapshot
) -> None:
    """Applies a version to an EnvRunner.

    `EnvRunner.set_state` applies connectors at once and weights only if their `WEIGHTS_SEQ_NO`
    is 0 or greater than its own; that the version is newer was decided before, and a new driver
    begins at 0 again. So the runner's own number is reset first.

    Modules that can point at their weights where they lie do so at the end, when nothing can fail
    any more; `set_state` gets the others.

    Args:
        runner: The EnvRunner. Its live module is used, whatever it was when the runner was made.
        set_state: Its `set_state`, as RLlib implements it.
        snapshot: What to apply.

    Raises:
        ApplyError: If the state does not fit. The runner has what it had before.
        CodecError: If the snapshot can not be decoded. Nothing was touched.
    """
    weights = fit_weights(runner, set_state, snapshot)
    _put(runner, set_state, snapshot, from_snapshot(snapshot, weights.states), weights)


def apply_weights(
    runner: Any, set_state: Callable[[dict[str, Any]], None], snapshot: Snapshot
) -> None:
    """Applies the weights of a version to an EnvRunner that is in the middle of `sample()`.

    Connectors keep their states, and counters theirs: a filter that was set to the common state
    now would forget what it saw since `sample()` began, which Ray merges when it ends.

    Args:
        runner: As for `apply_snapshot`, with the same errors raised.
        set_state: Likewise.
        snapshot: What to apply.
    """
    weights = fit_weights(runner, set_state, snapshot)
    _put(runner, set_state, snapshot, weights_only(snapshot, weights.states), weights)


def _put(
    runner: Any,
    set_state: Callable[[dict[str, Any]], None],
    snapshot: Snapshot,
    state: dict[str, Any],
    weights: Weights,
) -> None:
    before = {
        name: copy.deepcopy(pipeline.get_state())
        for name, pipeline in pipelines(runner).items()
        if name in state
    }
    seq_no, steps = runner._weights_seq_no, runner.num_env_steps_sampled_lifetime
    runner._weights_seq_no = 0
    try:
        if state:
            set_state(state)
        alias(weights.moves)
    except Exception as error:
        runner._weights_seq_no, runner.num_env_steps_sampled_lifetime = seq_no, steps
        _restore(runner, before, weights.undo)
        if isinstance(error, CodecError):
            raise
        raise ApplyError(
            f"version {snapshot.version} does not fit this EnvRunner: {type(error).__name__}: "
            f"{error}"
        ) from error
    runner._weights_seq_no = snapshot.weights_seq_no or 0


def pipelines(runner: Any) -> dict[str, Any]:
    """An EnvRunner's connector pipelines, by component."""
    return {
        COMPONENT_ENV_TO_MODULE_CONNECTOR: runner._env_to_module,
        COMPONENT_MODULE_TO_ENV_CONNECTOR: runner._module_to_env,
    }


def _restore(runner: Any, connectors: Mapping[str, Any], modules: Mapping[str, Any]) -> None:
    for name, state in connectors.items():
        pipelines(runner)[name].set_state(state)
    for module_id, state in modules.items():
        live_modules(runner)[module_id].set_state(state)
