"""All that can refer to memory that was handed out as a numpy array."""

from __future__ import annotations

import ctypes
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np

from redis_state_sync.blobs import Blob
from redis_state_sync.manifest import Manifest, Writer
from redis_state_sync.snapshot import Snapshot
from redis_state_sync.testing import skip_or_fail
from redis_state_sync.version import Version

try:
    import torch
except ImportError:
    skip_or_fail("these tests need torch: pip install 'redis-state-sync[rllib]'")

Make = Callable[[Any], Any]


def _cycle(array: Any) -> list[Any]:
    cycle = [array[1:]]
    cycle.append(cycle)
    return cycle


def _snapshot(array: Any) -> Snapshot:
    manifest = Manifest(Writer("w", "h", 1), 0)
    return Snapshot(Version(1, 1), manifest, {"rl_module/p": array}, frozenset())


VIEWS: dict[str, Make] = {
    "itself": lambda array: array,
    "a slice of a slice": lambda array: array[3:][4:40],
    "no byte of it": lambda array: array[7:7],
    "other types and axes": lambda array: array[:64].view(np.float32).reshape(4, 4).T[::2],
    "a subclass": lambda array: array[:64].view(np.dtype([("x", "f4")]), np.recarray),
    "a subclass of a subclass": lambda array: array.view(np.recarray)[:8].view(np.ma.MaskedArray),
    "a memoryview": lambda array: array.data[5:].cast("c"),
    "an array of a memoryview": lambda array: np.frombuffer(array.data, np.uint8)[2:],
    "an array of an array's interface": lambda array: np.asarray(memoryview(array).toreadonly()),
    "a tensor": lambda array: torch.from_numpy(array)[:64].view(torch.float32)[3:],
    "a parameter": lambda array: torch.nn.Parameter(
        torch.from_numpy(array)[:64].view(torch.float32)
    ).data.detach(),
    "an array of a tensor": lambda array: torch.from_numpy(array).reshape(-1, 1).numpy()[1:],
    "a tensor of a buffer": lambda array: torch.frombuffer(array.data, dtype=torch.uint8),
    "a ctypes object": lambda array: (ctypes.c_ubyte * 4).from_buffer(array),
    "a buffer to pickle": lambda array: pickle.PickleBuffer(array),
    "an iterator": lambda array: np.nditer(array),
    "a bound method": lambda array: array[1:].sum,
    "a blob": Blob,
    "a blob's pieces": lambda array: list(Blob(array).pieces()),
    "a snapshot": _snapshot,
    "a cycle": _cycle,
}
