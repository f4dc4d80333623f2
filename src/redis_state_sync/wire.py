"""What writer and reader of the wire format share: limits, alignment, registered types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

ALIGNMENT = 64
MAX_DEPTH = 100
# Long enough for any counter, short enough that parsing decimal text stays cheap.
MAX_INT_DIGITS = 4000
# Of ints beyond 64 bits, unlike others, any number with one hash can be made: in a dict each of
# them would be compared with all the others.
MAX_LONG_KEYS = 1000

Buffer = np.ndarray[Any, np.dtype[np.uint8]]

encoders: dict[type, tuple[str, Callable[[Any], Any]]] = {}
decoders: dict[str, Callable[[Any], Any]] = {}


def register_type(
    cls: type, name: str, to_tree: Callable[[Any], Any], from_tree: Callable[[Any], Any]
) -> None:
    """Makes instances of exactly `cls` publishable. Call it in the learner and in every reader.

    Args:
        cls: The type.
        name: Its name on the wire, the same in all processes.
        to_tree: Turns an instance into values that can be published.
        from_tree: The inverse. It sees data from the store: it must check what it gets.
    """
    encoders[cls] = (name, to_tree)
    decoders[name] = from_tree


def aligned_empty(size: int) -> Buffer:
    """Memory of this process, shape ``(size,)``, dtype uint8, at a multiple of 64 bytes."""
    whole: Buffer = np.empty(size + ALIGNMENT, np.uint8)
    start = -whole.ctypes.data % ALIGNMENT
    return whole[start : start + size]


def aligned(position: int) -> int:
    """The next multiple of 64."""
    return -(-position // ALIGNMENT) * ALIGNMENT
