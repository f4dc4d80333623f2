"""Puts a snapshot into an EnvRunner: whole, or not at all."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping
from typing import Any

from ray.rllib.core import (
    COMPONENT_ENV_TO_MODULE_CONNECTOR,
    COMPONENT_MODULE_TO_ENV_CONNECTOR,
    COMPONENT_RL_MODULE,
    DEFAULT_MODULE_ID,
)
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModule
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule

from redis_state_sync.errors import ApplyError, CodecError
from redis_state_sync.rllib.states import from_snapshot
from redis_state_sync.snapshot import Snapshot

logger = logging.getLogger("redis_state_sync")


def apply_snapshot(
    runner: Any, set_state: Callable[[dict[str, Any]], None], snapshot: Snapshot
) -> None:
    """Applies a version to an EnvRunner.

    `EnvRunner.set_state` applies connectors at once and weights only if their `WEIGHTS_SEQ_NO`
    is 0 or greater than its own; that the version is newer was decided before, and a new driver
    begins at 0 again. So the runner's own number is reset first.

    Args:
        runner: The EnvRunner. Its live module is used, whatever it was when the runner was made.
        set_state: Its `set_state`, as RLlib implements it.
        snapshot: What to apply.

    Raises:
        ApplyError: If the state does not fit. The runner has what it had before.
        CodecError: If the snapshot can not be decoded. Nothing was touched.
    """
    state = from_snapshot(snapshot)
    modules = state.get(COMPONENT_RL_MODULE, {})
    undo_modules = _check_modules(runner, modules)
    before = {
        name: copy.deepcopy(pipeline.get_state())
        for name, pipeline in _pipelines(runner).items()
        if name in state
    }
    seq_no, steps = runner._weights_seq_no, runner.num_env_steps_sampled_lifetime
    runner._weights_seq_no = 0
    try:
        set_state(state)
    except Exception as error:
        runner._weights_seq_no, runner.num_env_steps_sampled_lifetime = seq_no, steps
        _restore(runner, before, undo_modules)
        if isinstance(error, CodecError):
            raise
        raise ApplyError(
            f"version {snapshot.version} does not fit this EnvRunner: {type(error).__name__}: "
            f"{error}"
        ) from error
    runner._weights_seq_no = snapshot.weights_seq_no or 0


def _pipelines(runner: Any) -> dict[str, Any]:
    return {
        COMPONENT_ENV_TO_MODULE_CONNECTOR: runner._env_to_module,
        COMPONENT_MODULE_TO_ENV_CONNECTOR: runner._module_to_env,
    }


def _live_modules(runner: Any) -> Mapping[str, Any]:
    module = runner.module
    if module is None:
        return {}
    return module._rl_modules if isinstance(module, MultiRLModule) else {DEFAULT_MODULE_ID: module}


def _check_modules(runner: Any, modules: dict[str, Any]) -> dict[str, Any]:
    """Refuses weights that do not fit, before anything is touched.

    torch's `load_state_dict` copies what fits and complains about the rest afterwards, so names
    and shapes of stock torch modules are compared first. For a module that loads its state in its
    own way, a copy of its state is returned, by which it can be put back.

    Raises:
        ApplyError: If keys are missing or shapes differ.
    """
    live = _live_modules(runner)
    undo: dict[str, Any] = {}
    for module_id, state in list(modules.items()):
        module = live.get(module_id)
        if module is None:
            # RLlib, too, ignores modules that an EnvRunner does not have (or not yet).
            del modules[module_id]
            _report_unknown(runner, module_id)
        elif (
            isinstance(module, TorchRLModule)
            and type(module).set_state is TorchRLModule.set_state
            and isinstance(state, dict)
        ):
            _check_torch(module_id, module, state)
        else:
            undo[module_id] = copy.deepcopy(module.get_state())
    return undo


def _check_torch(module_id: str, module: Any, state: Mapping[str, Any]) -> None:
    own = module.state_dict()
    missing = sorted(own.keys() - state.keys())
    if missing and module.inference_only:
        raise ApplyError(
            f"module {module_id!r}: the published state lacks {missing[:5]}"
            f"{' and more' if len(missing) > 5 else ''}; is the architecture the same?"
        )
    for name, tensor in own.items():
        if name in state and tuple(getattr(state[name], "shape", ())) != tuple(tensor.shape):
            raise ApplyError(
                f"module {module_id!r}: {name} is {tuple(getattr(state[name], 'shape', ()))} in "
                f"the published state and {tuple(tensor.shape)} here; is the architecture the same?"
            )


def _report_unknown(runner: Any, module_id: str) -> None:
    reported: set[str] = runner.__dict__.setdefault("_redis_state_unknown_modules", set())
    if module_id not in reported:
        reported.add(module_id)
        logger.warning(
            "the published state has module %r, which this EnvRunner does not; it is left out",
            module_id,
        )


def _restore(runner: Any, connectors: Mapping[str, Any], modules: Mapping[str, Any]) -> None:
    for name, state in connectors.items():
        _pipelines(runner)[name].set_state(state)
    for module_id, state in modules.items():
        _live_modules(runner)[module_id].set_state(state)
