"""Points a torch module's tensors at memory that holds newer weights, in place of copying them.

``tensor.data = new`` costs the same at any size, and the EnvRunners of a node that point at
private mappings of one file have the weights in memory once. What refers to a tensor (its module,
an optimizer, an LSTM's flat weights) goes on referring to it. What refers to the memory that it
had would not follow, as it would after a copy: so a tensor is pointed elsewhere only if that
memory is its alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import numpy as np
import torch
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from ray.rllib.utils.torch_utils import convert_to_torch_tensor
from torch import Tensor, nn
from torch.autograd.graph import increment_version

Move = tuple[Tensor, Tensor]
"""A tensor of a module, and one that has the memory that it shall point at."""

# What RLlib hands over bit for bit; it rounds others, such as float64, to float32.
_BIT_FOR_BIT = {
    torch.float32: np.dtype(np.float32),
    torch.float16: np.dtype(np.float16),
    torch.int64: np.dtype(np.int64),
    torch.int32: np.dtype(np.int32),
    torch.int16: np.dtype(np.int16),
    torch.int8: np.dtype(np.int8),
    torch.uint8: np.dtype(np.uint8),
    torch.bool: np.dtype(np.bool_),
    torch.complex64: np.dtype(np.complex64),
    torch.complex128: np.dtype(np.complex128),
}
# As torch aligns its own memory: some kernels sum in another order where it is not.
_ALIGNMENT = 64
# Where RLlib puts what `torch.compile` made, and what may stand in for the class's methods.
_REPLACEABLE = {
    "set_state",
    "load_state_dict",
    "_load_from_state_dict",
    "forward",
    "_forward",
    "_forward_inference",
    "_forward_exploration",
    "_forward_train",
}


# How many refer to a tensor's memory. Older builds of torch may not tell: nothing is moved then.
_use_count = getattr(torch._C, "_storage_Use_Count", None)


def _uses(tensor: Tensor) -> int | None:
    return _use_count(tensor.untyped_storage()._cdata) if _use_count is not None else None


_ONE_USE = _uses(torch.empty(1))  # 2 in most: one is that of who asks.


def is_stock(module: Any) -> bool:
    """Whether a module's `set_state` copies arrays into its tensors, and does nothing else.

    That is torch's and RLlib's own code, in the module and those within it: no method replaced, no
    hooks on loading, no extra state, no parametrizations, nothing compiled.
    """
    return (
        isinstance(module, TorchRLModule)
        and type(module).set_state is TorchRLModule.set_state
        and type(module).load_state_dict is nn.Module.load_state_dict
        and all(map(_loads_plainly, module.modules()))
    )


def _loads_plainly(module: nn.Module) -> bool:
    kind = type(module)
    return (
        kind._load_from_state_dict is nn.Module._load_from_state_dict
        and kind.set_extra_state is nn.Module.set_extra_state
        and not module._load_state_dict_pre_hooks
        and not module._load_state_dict_post_hooks
        and module._compiled_call_impl is None
        and not isinstance(module, torch.jit.ScriptModule)
        and "parametrizations" not in module._modules
        and module.__dict__.keys().isdisjoint(_REPLACEABLE)
    )


def plan(
    module: nn.Module, state: Mapping[str, Any], *, shared: Collection[int] = ()
) -> list[Move] | None:
    """What to point where so that a module has a state, or None if it has to be copied.

    An array that its tensor can not be pointed at, such as one that RLlib would convert, is copied
    into memory of its own here; the module is not touched.

    Args:
        module: A module that `is_stock`.
        state: Name -> array. They must be the caller's own to give away.
        shared: The `id` of tensors that other modules have, too, and that are not to be moved.

    Returns:
        A move for each of the module's tensors. None if one of them has nothing of its shape in
        the state; or is not a plain dense tensor on the CPU; or shares its memory with anything.
    """
    if torch.is_inference_mode_enabled():
        return None  # What is made now would make inference tensors of the module's.
    moves: list[Move] = []
    seen = set(shared)
    for name, own in _tensors(module):
        if id(own) in seen or not _is_plain(own) or name not in state:
            return None
        seen.add(id(own))
        new = _pointed_at(own, state[name])
        if new is None:
            new = _copied(own, state[name])
        if new is None:
            return None
        moves.append((own, new))
    return moves


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """What `load_state_dict` loads, by its names; one that has two names comes twice."""
    for path, part in module.named_modules(remove_duplicate=False):
        prefix = f"{path}." if path else ""
        for name, tensor in chain(part._parameters.items(), part._buffers.items()):
            if tensor is not None and name not in part._non_persistent_buffers_set:
                yield prefix + name, tensor


def _is_plain(own: Tensor) -> bool:
    return (
        type(own) in (nn.Parameter, Tensor)
        and own.device.type == "cpu"
        and own.layout is torch.strided
        and own.is_leaf
        and not own.is_inference()
        and not own.untyped_storage().is_shared()  # with other processes
        and _ONE_USE is not None
        and _uses(own) == _ONE_USE
    )


def _pointed_at(own: Tensor, array: Any) -> Tensor | None:
    """An array's memory as a tensor that is just like one of the module's, or None."""
    if not (
        isinstance(array, np.ndarray)
        and array.shape == own.shape
        and own.dtype in _BIT_FOR_BIT
        and array.dtype == _BIT_FOR_BIT[own.dtype]
        and array.flags.writeable
        and array.flags.c_contiguous
    ):
        return None
    new = torch.from_numpy(array)
    return new if new.stride() == own.stride() and new.data_ptr() % _ALIGNMENT == 0 else None


def _copied(own: Tensor, value: Any) -> Tensor | None:
    """A value as RLlib copies it into a tensor, or None if it can not be."""
    if tuple(getattr(value, "shape", ())) != tuple(own.shape):
        return None
    try:
        return torch.empty_like(own, requires_grad=False).copy_(convert_to_torch_tensor(value))
    except (TypeError, ValueError, RuntimeError):
        return None  # Whoever copies it will say what is wrong.


def alias(moves: Iterable[Move]) -> None:
    """Points tensors at their new memory: all of them, or none if that raises."""
    before: list[Move] = []
    try:
        for own, new in moves:
            before.append((own, own.data))
            own.data = new
            increment_version(own)  # As a copy does: a graph that needs the old values finds out.
    except BaseException:
        for own, old in before:
            own.data = old
        raise
