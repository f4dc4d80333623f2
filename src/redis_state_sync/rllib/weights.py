"""Decides, before anything is touched, how each of an EnvRunner's modules gets its weights."""

from __future__ import annotations

import copy
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModule
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner
from torch import nn

from redis_state_sync.errors import ApplyError
from redis_state_sync.rllib.alias import Move, is_stock, plan
from redis_state_sync.rllib.states import modules_in
from redis_state_sync.snapshot import Snapshot

logger = logging.getLogger("redis_state_sync")

_STOCK_SET_STATES = (SingleAgentEnvRunner.set_state, MultiAgentEnvRunner.set_state)


# Memory of its own for each version costs less than what RLlib does to load one, up to where
# writing to fresh pages costs more than to those that a module has.
_VIEW_FROM_BYTES = 1 << 20


@dataclass
class Weights:
    """How weights go into modules.

    Attributes:
        moves: What to point elsewhere, see `alias`.
        states: Module id -> state, of the modules that copy theirs: for `EnvRunner.set_state`.
        undo: Module id -> state that it has, of those that load theirs in a way of their own.
    """

    moves: list[Move] = field(default_factory=list)
    states: dict[str, Any] = field(default_factory=dict)
    undo: dict[str, Any] = field(default_factory=dict)


def live_modules(runner: Any) -> Mapping[str, Any]:
    """Module id -> module, of those that an EnvRunner has now."""
    module = runner.module
    if module is None:
        return {}
    return module._rl_modules if isinstance(module, MultiRLModule) else {DEFAULT_MODULE_ID: module}


def fit_weights(
    runner: Any, set_state: Callable[[dict[str, Any]], None], snapshot: Snapshot
) -> Weights:
    """Decodes the weights that changed, and refuses those that do not fit.

    torch's `load_state_dict` copies what fits and complains about the rest afterwards, so names
    and shapes of torch modules are compared first. For a module that loads its state in its own
    way, a copy of its state is made, by which it can be put back.

    Args:
        runner: The EnvRunner.
        set_state: Its `set_state`, as RLlib implements it.
        snapshot: What to apply.

    Raises:
        ApplyError: If keys are missing or shapes differ.
        DecodeError: If weights are not well-formed.
    """
    live = live_modules(runner)
    names = modules_in(snapshot.changed)
    for module_id in names.keys() - live.keys():
        # RLlib, too, ignores modules that an EnvRunner does not have (or not yet).
        del names[module_id]
        _report_unknown(runner, module_id)
    may_move = _only_loads(runner, set_state)
    shared = _shared([live[module_id] for module_id in names])
    weights = Weights()
    for module_id, name in names.items():
        module = live[module_id]
        only_loads = may_move and is_stock(module)
        large = snapshot.manifest.components[name].size >= _VIEW_FROM_BYTES
        # Code of a user's own may keep what it gets, or write to it.
        state = snapshot.view(name) if only_loads and large else snapshot[name]
        own = snapshot.is_private(name) or not large
        if only_loads and isinstance(state, dict) and own:
            moves = plan(module, state, shared=shared)
            if moves is not None:
                weights.moves += moves
                continue
        if _copies(module) and isinstance(state, dict):
            _check_torch(module_id, module, state)
        else:
            weights.undo[module_id] = copy.deepcopy(module.get_state())
        weights.states[module_id] = state
    return weights


def _only_loads(runner: Any, set_state: Any) -> bool:
    """Whether an EnvRunner's `set_state` does nothing with weights but hand them to its modules."""
    stock = getattr(set_state, "__func__", None) in _STOCK_SET_STATES
    many = isinstance(runner.module, MultiRLModule)
    return stock and not (many and type(runner.module).set_state is not MultiRLModule.set_state)


def _copies(module: Any) -> bool:
    return isinstance(module, TorchRLModule) and type(module).set_state is TorchRLModule.set_state


def _shared(modules: list[Any]) -> set[int]:
    """The tensors that several of these modules have: the last to be loaded must win."""
    if len(modules) < 2:
        return set()
    counts = Counter(
        id(tensor)
        for module in modules
        if isinstance(module, nn.Module)
        for tensor in chain(module.parameters(), module.buffers())
    )
    return {tensor for tensor, count in counts.items() if count > 1}


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
