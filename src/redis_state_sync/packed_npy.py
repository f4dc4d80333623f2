"""RLlib's packed arrays: zlib + base64 strings of ``.npy`` files, as `MeanStdFilter` states hold.

RLlib loads such a string with ``np.load(allow_pickle=True)`` (`ray/rllib/utils/serialization.py`):
one that was forged in the store would run code in every EnvRunner, although our own format never
unpickles. So the publisher takes them apart into plain arrays, the reader rebuilds them from
checked arrays, and a received text that RLlib *could* load is refused.
"""

from __future__ import annotations

import base64
import io
import re
import zlib
from typing import Any

import numpy as np

# The shortest pickle that does anything, deflated and in base64, is longer than this.
_SHORTEST = 20
_LONGEST = 64 << 20
_SLICE = 1 << 16
# The first four characters of base64's alphabet, wherever they are: the rest is ignored.
_FIRST_QUAD = re.compile(rb"[^A-Za-z0-9+/]*([A-Za-z0-9+/])" * 4)


class Budget:
    """How many bytes may still be inflated to find out whether something is packed."""

    def __init__(self, left: int = _LONGEST) -> None:
        self.left = left


def looks_packed(value: Any, budget: Budget | None = None) -> bool:
    """Whether RLlib's loader would get as far as `np.load` with this text or buffer.

    The loader ignores characters outside of base64's alphabet and takes any window size, so this
    decodes as leniently as it does: a complete zlib stream, checksum included, is what counts.

    Args:
        value: The text or buffer.
        budget: Shared by the values of one blob. What exceeds it looks packed: nothing honest
            inflates to so much without being an array.
    """
    budget = Budget() if budget is None else budget
    try:
        raw = value.encode("ascii") if isinstance(value, str) else memoryview(value).tobytes()
        if not _begins_zlib(raw):
            return False
        data = base64.b64decode(raw)
    except (ValueError, TypeError):
        return False
    if len(data) < _SHORTEST * 3 // 4:
        return False
    inflate = zlib.decompressobj()
    try:
        # Slice by slice: what is not yet consumed is copied with each call.
        for start in range(0, len(data), _SLICE):
            chunk = data[start : start + _SLICE]
            while chunk and not inflate.eof:
                budget.left -= len(inflate.decompress(chunk, _SLICE))
                chunk = inflate.unconsumed_tail
                if budget.left < 0:
                    return True
    except zlib.error:
        return False
    return inflate.eof


def _begins_zlib(raw: bytes) -> bool:
    """Whether the first two bytes behind the base64 are a zlib header: cheap, and mostly no."""
    first = _FIRST_QUAD.match(raw)
    if first is None:
        return False
    method, flags, _ = base64.b64decode(b"".join(first.groups()))
    return method & 15 == 8 and (method << 8 | flags) % 31 == 0


def unpack(text: str) -> np.ndarray[Any, Any]:
    """Reads a packed array.

    Raises:
        ValueError: If it holds anything but one plain array.
    """
    inflate = zlib.decompressobj()
    data = inflate.decompress(base64.b64decode(text), _LONGEST)
    if not inflate.eof:
        raise ValueError(f"packed array of more than {_LONGEST} bytes")
    array: Any = np.load(io.BytesIO(data), allow_pickle=False)
    if not isinstance(array, np.ndarray):
        raise ValueError("an archive of arrays, not an array")
    return array


def pack(array: np.ndarray[Any, Any]) -> str:
    """Builds the string that RLlib's `_deserialize_ndarray` reads, without a pickle in it."""
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return base64.b64encode(zlib.compress(buffer.getvalue())).decode("ascii")
