"""States that say who made them and which one they are, in every component and all through it."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

FROZEN = "rl_module/frozen"
LARGE = "rl_module/large"
_LARGE_BYTES = 5 << 20  # Two pieces of at most 4 MiB.
_LARGE_CHANGES = 32  # It is another one in every so manyth state.


class TornError(AssertionError):
    """A snapshot that is not one published state, whole."""


@dataclass(frozen=True)
class Mark:
    """Which state this is.

    Args:
        learner: The process that made it.
        counter: How many it had made before.
    """

    learner: str
    counter: int


def state(mark: Mark, *, large: bool = False) -> dict[str, Any]:
    """A state of several components. One never changes, whoever publishes it."""
    made = {
        "rl_module/p0": _module("p0", mark, 4096),
        "rl_module/p1": _module("p1", mark, 1024),
        "env_to_module_connector": {
            "learner": mark.learner,
            "counter": mark.counter,
            "mean": _pattern("mean", mark, 64),
        },
        "counters": {"learner": mark.learner, "counter": mark.counter},
        FROZEN: {"w": _pattern("frozen", None, 16384)},
    }
    if large:
        made[LARGE] = _module("large", _mark_of_large(mark), _LARGE_BYTES // 4)
    return made


def mark_of(snapshot: Mapping[str, Any], *, large: bool = False) -> Mark:
    """Which state a snapshot is.

    Raises:
        TornError: If it is a mixture, has other components, or holds a wrong byte.
    """
    counters = snapshot["counters"]
    mark = Mark(counters["learner"], counters["counter"])
    expected = state(mark, large=large)
    if snapshot.keys() != expected.keys():
        raise TornError(f"components {sorted(snapshot)} in a state of {mark}")
    for name, tree in expected.items():
        found = snapshot[name]
        if found.keys() != tree.keys():
            raise TornError(f"{name} of {mark} has {sorted(found)}")
        for key, value in tree.items():
            same = (
                np.array_equal(found[key], value)
                if isinstance(value, np.ndarray)
                else found[key] == value
            )
            if not same:
                raise TornError(f"{name}/{key} is not that of {mark}")
    return mark


def _mark_of_large(mark: Mark) -> Mark:
    return Mark(mark.learner, mark.counter // _LARGE_CHANGES * _LARGE_CHANGES)


def _module(name: str, mark: Mark, size: int) -> dict[str, Any]:
    return {"learner": mark.learner, "counter": mark.counter, "w": _pattern(name, mark, size)}


def _pattern(name: str, mark: Mark | None, size: int) -> np.ndarray[Any, Any]:
    """Other numbers at each place, so that pieces in the wrong order do not pass."""
    start = zlib.crc32(f"{name}/{mark}".encode())
    return np.arange(start, start + size, dtype=np.uint64).astype(np.uint32)
