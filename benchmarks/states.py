"""The payload: the state of one RLModule, as numpy arrays, of any size."""

from __future__ import annotations

import math

import numpy as np

LAYERS = 10
MB = 1_000_000

State = dict[str, np.ndarray]


def shapes(nbytes: int) -> dict[str, tuple[int, ...]]:
    """Of ten square layers with bias: 20 tensors of float32, `nbytes` in all or a little less."""
    # side**2 + side floats for each layer.
    side = int((math.sqrt(1 + nbytes / LAYERS) - 1) / 2)
    found: dict[str, tuple[int, ...]] = {}
    for layer in range(LAYERS):
        found[f"weight_{layer}"] = (side, side)
        found[f"bias_{layer}"] = (side,)
    return found


def make_state(nbytes: int) -> State:
    """A state of random weights."""
    generator = np.random.default_rng(0)
    return {
        name: generator.random(shape, dtype=np.float32) for name, shape in shapes(nbytes).items()
    }


def size(state: State) -> int:
    """In bytes."""
    return sum(array.nbytes for array in state.values())


def change(state: State) -> None:
    """Changes every weight, in place, as an optimiser's step does."""
    for array in state.values():
        array += 1.0


def label(nbytes: int) -> str:
    """What a size is called in tables: ``"64 KB"``, ``"16 MB"``."""
    return f"{nbytes // MB} MB" if nbytes >= MB else f"{nbytes // 1000} KB"
