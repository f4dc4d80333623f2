"""Turns values into header nodes and array buffers. What can not be is refused, by its path."""

from __future__ import annotations

import sys
from collections import OrderedDict
from typing import Any

import numpy as np

from redis_state_sync import packed_npy
from redis_state_sync.dtypes import describe_dtype
from redis_state_sync.errors import EncodeError
from redis_state_sync.wire import (
    MAX_DEPTH,
    MAX_INT_DIGITS,
    MAX_LONG_KEYS,
    Buffer,
    aligned,
    encoders,
)

_INT_RANGE = range(-(1 << 63), 1 << 64)


class TreeWriter:
    """Writes one tree.

    Args:
        arrays: Where to collect the buffers, in the order of their offsets.
        guard_packed: See `codec.encode`.
    """

    def __init__(self, arrays: list[Buffer], guard_packed: bool) -> None:
        self.arrays = arrays
        self.guard_packed = guard_packed
        self.size = 0
        self.long_keys = 0

    def node(self, value: Any, path: str, depth: int) -> Any:
        """The header node of a value; raises `EncodeError` naming the path."""
        kind = type(value)
        if value is None or kind is bool or kind is float:
            return value
        if kind is bytes:
            return self._guarded(value, path)
        if kind is int:
            return value if value in _INT_RANGE else self._big_int(value, path)
        if kind is str:
            return self._text(value, path)
        if depth > MAX_DEPTH:
            raise EncodeError(f"{path}: nested deeper than {MAX_DEPTH} levels, or within itself")
        if kind is dict or kind is OrderedDict:
            return self._dict(value, path, depth)
        if kind is list or kind is tuple:
            items = [self.node(v, f"{path}[{i}]", depth + 1) for i, v in enumerate(value)]
            return ["l" if kind is list else "t", items]
        if kind is np.ndarray:
            return self._array(self._guarded(value, path), path)
        if kind is np.str_ or kind is np.bytes_:
            # As a fixed-length dtype, empty ones and zeros at the end would be lost.
            return ["S", self.node(value[:], path, depth + 1)]  # item() loses zeros too
        if isinstance(value, np.generic):
            return ["s", self._dtype(value.dtype, path), self._guarded(value, path).tobytes()]
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            return self._tensor(torch, value, path)
        if kind in encoders:
            name, to_tree = encoders[kind]
            return ["x", name, self.node(to_tree(value), path, depth + 1)]
        raise EncodeError(
            f"{path}: {kind.__name__} can not be published "
            "(convert it, leave it out of the state, or see redis_state_sync.register_type)"
        )

    def _dict(self, value: dict[Any, Any], path: str, depth: int) -> Any:
        flat: list[Any] = []
        for key, item in value.items():
            if key is not None and type(key) not in (str, int):
                raise EncodeError(
                    f"{path}: key {key!r} is a {type(key).__name__}; keys must be str, int or None"
                )
            if type(key) is str:
                self._check_unicode(key, path)
            flat.append(key if type(key) is not int else self._int_key(key, path))
            flat.append(self.node(item, f"{path}/{key}", depth + 1))
        return ["d", flat]

    def _int_key(self, key: int, path: str) -> Any:
        if key in _INT_RANGE:
            return key
        self.long_keys += 1
        if self.long_keys > MAX_LONG_KEYS:
            raise EncodeError(f"{path}: more than {MAX_LONG_KEYS} keys beyond 64 bits")
        return self._big_int(key, path)

    def _big_int(self, value: int, path: str) -> Any:
        if value.bit_length() > MAX_INT_DIGITS * 3:
            raise EncodeError(f"{path}: an int of {value.bit_length()} bits is too long")
        return ["i", str(value)]

    def _text(self, value: str, path: str) -> Any:
        if len(value) >= 20 and packed_npy.looks_packed(value):
            try:
                return ["z", self._array(packed_npy.unpack(value), path)]
            except ValueError as error:
                raise EncodeError(
                    f"{path}: str holds a zlib stream that is no plain array: {error}"
                ) from error
        self._check_unicode(value, path)
        return value

    @staticmethod
    def _check_unicode(value: str, path: str) -> None:
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError as error:
                raise EncodeError(
                    f"{path}: a str with lone surrogates can not be published"
                ) from error

    def _guarded(self, value: Any, path: str) -> Any:
        if self.guard_packed and packed_npy.looks_packed(value):
            raise EncodeError(
                f"{path}: a {type(value).__name__} that RLlib would load as a packed array can not "
                "be published; publish the array, or the packed text as a str"
            )
        return value

    def _dtype(self, dtype: np.dtype[Any], path: str) -> Any:
        try:
            return describe_dtype(dtype)
        except EncodeError as error:
            raise EncodeError(f"{path}: {error}") from error.__cause__

    def _array(self, array: np.ndarray[Any, Any], path: str) -> Any:
        dtype = self._dtype(array.dtype, path)
        fortran = array.ndim > 1 and array.flags.f_contiguous and not array.flags.c_contiguous
        flat = array.T if fortran else array
        # ascontiguousarray copies only what is not contiguous; it makes 0-d arrays 1-d.
        raw = np.ascontiguousarray(flat).reshape(-1).view(np.uint8)
        offset = self._buffer(raw)
        return ["a", dtype, list(array.shape), fortran, offset]

    def _tensor(self, torch: Any, tensor: Any, path: str) -> Any:
        name = str(tensor.dtype).removeprefix("torch.")
        if tensor.device.type == "meta":
            raise EncodeError(f"{path}: a torch tensor on the meta device has no values to publish")
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
            raise EncodeError(
                f"{path}: only dense torch tensors can be published, not sparse, quantized or "
                "nested ones: see to_dense(), dequantize() and to_padded_tensor()"
            )
        try:
            flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
            raw = flat.view(torch.uint8).numpy() if flat.numel() else np.empty(0, np.uint8)
        except Exception as error:  # Of a subclass, such as a sharded or a traced tensor.
            raise EncodeError(
                f"{path}: the values of this {type(tensor).__name__} can not be read: "
                f"{type(error).__name__}: {error}"
            ) from error
        return ["T", name, list(tensor.shape), self._buffer(raw)]

    def _buffer(self, raw: Buffer) -> int:
        offset = self.size
        self.arrays.append(raw)
        self.size = aligned(offset + raw.size)
        return offset
