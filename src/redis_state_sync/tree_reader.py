"""Rebuilds values from header nodes and buffers of unknown origin: everything is checked."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from redis_state_sync import packed_npy
from redis_state_sync.dtypes import checked_shape, restore_dtype
from redis_state_sync.errors import DecodeError
from redis_state_sync.wire import MAX_DEPTH, MAX_INT_DIGITS, MAX_LONG_KEYS, decoders


class TreeReader:
    """Reads one tree.

    Args:
        buffers: What lies behind the header.
        guard_packed: See `codec.decode`.
        copy: See `codec.decode`.
    """

    def __init__(self, buffers: memoryview, guard_packed: bool, copy: bool) -> None:
        self.buffers = buffers
        self.guard_packed = guard_packed
        self.copy = copy
        # The writer lays buffers out in the order of the tree. One that begins before the end of
        # an earlier view might share its bytes, and so be written to with it.
        self.viewed = 0
        # Honest buffers never overlap. Without this, a small blob could name one buffer a million
        # times and make the reader take a million times the memory.
        self.budget = len(buffers)
        self.inflation = packed_npy.Budget()
        self.long_keys = 0

    def value(self, node: Any, depth: int) -> Any:
        """The value of a header node; raises `DecodeError`."""
        if depth > MAX_DEPTH + 2:
            raise DecodeError("nested too deeply")
        if isinstance(node, (str, bytes)):
            return self._guarded(node)
        if node is None or isinstance(node, (bool, int, float)):
            return node
        if not isinstance(node, list) or not node:
            raise DecodeError("header holds a node without a tag")
        tag, *parts = node
        try:
            return self._tagged(tag, parts, depth)
        except (DecodeError, MemoryError):
            raise
        except Exception as error:  # numpy's, torch's or a registered type's own
            raise DecodeError(f"ill-formed {tag!s:.8} node: {type(error).__name__}") from error

    def _tagged(self, tag: Any, parts: list[Any], depth: int) -> Any:
        match tag, parts:
            case (("l" | "t"), [list(items)]):
                values = [self.value(item, depth + 1) for item in items]
                return values if tag == "l" else tuple(values)
            case "d", [list(flat)]:
                return self._dict(flat, depth)
            case "a", [dtype, shape, bool(fortran), int(offset)]:
                return self._guarded(self._array(dtype, shape, fortran, offset))
            case "s", [dtype, bytes(raw)]:
                restored = restore_dtype(dtype)
                if len(raw) != restored.itemsize:
                    raise DecodeError("scalar of the wrong size")
                return self._guarded(np.frombuffer(raw, restored)[0])
            case "S", [node]:
                text = self.value(node, depth + 1)
                if type(text) not in (str, bytes):
                    raise DecodeError("numpy text that is neither str nor bytes")
                return np.str_(text) if type(text) is str else np.bytes_(text)
            case "z", [["a", dtype, shape, bool(fortran), int(offset)]]:
                return packed_npy.pack(self._array(dtype, shape, fortran, offset))
            case "T", [str(name), shape, int(offset)]:
                return self._tensor(name, checked_shape(shape), offset)
            case "i", [str(digits)]:
                if len(digits) > MAX_INT_DIGITS or not digits.removeprefix("-").isdecimal():
                    raise DecodeError("not an int")
                return int(digits)
            case "x", [str(name), inner]:
                if name not in decoders:
                    raise DecodeError(f"type {name[:40]!r} is not registered in this process")
                return decoders[name](self.value(inner, depth + 1))
            case _:
                raise DecodeError(f"unknown node {str(tag)[:8]!r}")

    def _dict(self, flat: list[Any], depth: int) -> dict[Any, Any]:
        if len(flat) % 2:
            raise DecodeError("dict with a key but no value")
        result: dict[Any, Any] = {}
        for position in range(0, len(flat), 2):
            key = flat[position]
            if isinstance(key, list):
                key = self._long_key(self.value(key, depth + 1))
            if key is not None and type(key) not in (str, int):
                raise DecodeError("dict with a key that is neither str, int nor None")
            if key in result:
                raise DecodeError("dict with a key that occurs twice")
            result[key] = self.value(flat[position + 1], depth + 1)
        return result

    def _long_key(self, key: Any) -> Any:
        self.long_keys += 1
        if self.long_keys > MAX_LONG_KEYS:
            raise DecodeError(f"more than {MAX_LONG_KEYS} keys beyond 64 bits")
        return key

    def _array(self, dtype: Any, shape: Any, fortran: bool, offset: int) -> np.ndarray[Any, Any]:
        restored, lengths = restore_dtype(dtype), checked_shape(shape)
        array = np.frombuffer(self._take(offset, math.prod(lengths) * restored.itemsize), restored)
        if not self._viewable(offset, array):
            array = array.copy()
        return array.reshape(lengths[::-1]).T if fortran else array.reshape(lengths)

    def _tensor(self, name: str, shape: tuple[int, ...], offset: int) -> Any:
        try:
            import torch
        except ImportError as error:
            raise DecodeError(
                "the state holds torch tensors: pip install torch in this process's environment"
            ) from error
        # Not getattr: torch imports submodules, for seconds, when asked for them by name.
        dtype = vars(torch).get(name)
        if not isinstance(dtype, torch.dtype) or name.startswith("q"):  # quantized
            raise DecodeError(f"unknown torch dtype {name[:40]!r}")
        count = math.prod(shape)
        if count == 0:
            return torch.empty(shape, dtype=dtype)
        raw = np.frombuffer(self._take(offset, count * dtype.itemsize), np.uint8)
        aligned = raw.ctypes.data % dtype.itemsize == 0
        if not (aligned and raw.flags.writeable and self._viewable(offset, raw)):
            raw = raw.copy()
        return torch.from_numpy(raw).view(dtype).reshape(shape)

    def _viewable(self, offset: int, array: np.ndarray[Any, Any]) -> bool:
        if self.copy or not array.flags.aligned or offset < self.viewed:
            return False
        self.viewed = offset + array.nbytes
        return True

    def _take(self, offset: int, size: int) -> memoryview:
        self.budget -= size
        if offset < 0 or size < 0 or offset + size > len(self.buffers) or self.budget < 0:
            raise DecodeError("array lies outside of the blob")
        return self.buffers[offset : offset + size]

    def _guarded(self, value: Any) -> Any:
        if self.guard_packed and packed_npy.looks_packed(value, self.inflation):
            raise DecodeError("a text or buffer that RLlib would load as a packed array")
        return value
