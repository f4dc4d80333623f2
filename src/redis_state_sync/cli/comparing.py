"""What differs between two states: pure functions of decoded components."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

# So many values at a time are turned into float64: a copy of a whole module would double memory.
_AT_ONCE = 1 << 20


@dataclass(frozen=True, slots=True)
class Change:
    """How one component, or one array, changed.

    Norms are Euclidean, over all numbers of arrays that are there before and after with the same
    shape.

    Args:
        before: Norm before.
        difference: Norm of the difference; NaN if a value is.
        largest: The largest difference of one number.
        arrays: How many arrays of numbers changed.
        others: Paths of what changed and is no such array: other values, other shapes, or what is
            there before or after only.
    """

    before: float = 0.0
    difference: float = 0.0
    largest: float = 0.0
    arrays: int = 0
    others: tuple[str, ...] = ()

    @property
    def relative(self) -> float | None:
        """Norm of the difference in terms of that before; None if that was 0."""
        return self.difference / self.before if self.before else None

    def __add__(self, other: Change) -> Change:
        return Change(
            math.hypot(self.before, other.before),
            math.hypot(self.difference, other.difference),
            float(np.fmax(self.largest, other.largest)),
            self.arrays + other.arrays,
            self.others + other.others,
        )


def compare(before: Any, after: Any) -> dict[str, Change]:
    """What changed, by path within the component. What is equal has only its norm."""
    old, new = dict(_leaves(before, "")), dict(_leaves(after, ""))
    found = {}
    for path in {**old, **new}:
        if path not in old or path not in new:
            found[path] = Change(others=(path,))
        else:
            found[path] = _compare(path, old[path], new[path])
    return found


def _leaves(tree: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(tree, Mapping) and tree:
        for key, value in tree.items():
            yield from _leaves(value, f"{path}/{key}" if path else str(key))
    elif isinstance(tree, (list, tuple)) and tree:
        for number, value in enumerate(tree):
            yield from _leaves(value, f"{path}/{number}" if path else str(number))
    else:
        yield path, tree


def _compare(path: str, before: Any, after: Any) -> Change:
    old, new = _numbers(before), _numbers(after)
    if old is None or new is None:
        same = old is None and new is None and _same(before, after)
        return Change() if same else Change(others=(path,))
    if old.shape != new.shape:
        return Change(others=(path,))
    norm = square = largest = 0.0
    changed = False
    old, new = old.reshape(-1), new.reshape(-1)
    for start in range(0, old.size, _AT_ONCE):
        part = _wide(old[start : start + _AT_ONCE])
        # inf - inf is no number, and said to be none.
        with np.errstate(invalid="ignore"):
            difference = np.abs(_wide(new[start : start + _AT_ONCE]) - part)
        norm += float(np.vdot(part, part).real)
        square += float(np.dot(difference, difference))
        largest = float(np.fmax(largest, np.max(difference, initial=0.0)))
        changed = changed or not np.array_equal(
            old[start : start + _AT_ONCE], new[start : start + _AT_ONCE], equal_nan=True
        )
    return Change(math.sqrt(norm), math.sqrt(square), largest, int(changed))


def _wide(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)


def _numbers(value: Any) -> npt.NDArray[Any] | None:
    """An array of numbers, or None."""
    if hasattr(value, "detach"):  # A torch tensor, of a dtype that numpy may lack.
        tensor = value.detach()
        value = (tensor.float() if tensor.is_floating_point() else tensor).numpy()
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biufc":
        return np.asarray(value)
    return None


def _same(before: Any, after: Any) -> bool:
    if isinstance(before, np.ndarray) and isinstance(after, np.ndarray):
        return before.dtype == after.dtype and before.tobytes() == after.tobytes()
    return type(before) is type(after) and bool(before == after)
