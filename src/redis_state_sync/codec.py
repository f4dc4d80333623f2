"""The wire format of one component: a msgpack header, then raw array buffers outside of it.

::

    b"RSS\\x01" | header length, uint32 little-endian | header | padding | buffer | padding | ...

The header is the tree: scalars as they are, everything else a list that begins with a tag.
Buffers start at multiples of 64 bytes, so that arrays can be used in place. Nothing is unpickled.

Lossless for None, bool, int (any size), float, str, bytes, list, tuple, dict with str, int or None
keys (an OrderedDict arrives as a dict), numpy arrays of every plain dtype and numpy scalars, and
torch tensors (by their bits, on the CPU, without gradient). Other types: `register_type`.
"""

from __future__ import annotations

import struct
import sys
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import msgpack
import numpy as np

from redis_state_sync import packed_npy
from redis_state_sync.dtypes import checked_shape, describe_dtype, restore_dtype
from redis_state_sync.errors import DecodeError, EncodeError
from redis_state_sync.untrusted import unpack

MAGIC = b"RSS\x01"
ALIGNMENT = 64
MAX_DEPTH = 100
MAX_HEADER_BYTES = 256 << 20
_PREFIX = struct.Struct("<4sI")
_INT_RANGE = range(-(1 << 63), 1 << 64)
# Long enough for any counter, short enough that parsing decimal text stays cheap.
_MAX_INT_DIGITS = 4000

Buffer = np.ndarray[Any, np.dtype[np.uint8]]

_encoders: dict[type, tuple[str, Callable[[Any], Any]]] = {}
_decoders: dict[str, Callable[[Any], Any]] = {}


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
    _encoders[cls] = (name, to_tree)
    _decoders[name] = from_tree


def encode(tree: Any, *, path: str = "", guard_packed: bool = True) -> Buffer:
    """Copies a tree into one contiguous blob; later changes to its arrays do not reach the blob.

    Args:
        tree: The values, see the module's docstring.
        path: What to call the tree in error messages.
        guard_packed: Refuse buffers that `decode` with the same argument would refuse.

    Returns:
        The blob, shape ``(n,)``, dtype uint8.

    Raises:
        EncodeError: If a value can not be published; the message names its path.
    """
    arrays: list[Buffer] = []
    writer = _TreeWriter(arrays, guard_packed)
    header = msgpack.packb(writer.node(tree, path, 0), use_bin_type=True)
    if len(header) > MAX_HEADER_BYTES:
        raise EncodeError(f"{path}: more than {MAX_HEADER_BYTES} bytes outside of arrays")
    start = _aligned(_PREFIX.size + len(header))
    blob = np.empty(start + writer.size, np.uint8)
    blob[:start] = 0
    blob[: _PREFIX.size] = np.frombuffer(_PREFIX.pack(MAGIC, len(header)), np.uint8)
    blob[_PREFIX.size : _PREFIX.size + len(header)] = np.frombuffer(header, np.uint8)
    position = start
    for array in arrays:
        end = position + array.size
        blob[position:end] = array
        position = _aligned(end)
        blob[end:position] = 0
    return blob


def decode(data: bytes | bytearray | memoryview | Buffer, *, guard_packed: bool = True) -> Any:
    """Rebuilds a tree; its arrays are fresh and writable.

    Args:
        data: A blob.
        guard_packed: Refuse texts and buffers that RLlib's array loader would load.

    Raises:
        DecodeError: If `data` is not a well-formed blob. Memory taken before that is bounded by a
            small multiple of ``len(data)``.
    """
    view = memoryview(data).cast("B")  # type: ignore[arg-type] # an array is a buffer
    if len(view) < _PREFIX.size:
        raise DecodeError("blob is shorter than its prefix")
    magic, header_length = _PREFIX.unpack_from(view)
    if magic != MAGIC:
        raise DecodeError("blob is of an unknown format")
    if header_length > min(MAX_HEADER_BYTES, len(view) - _PREFIX.size):
        raise DecodeError("blob ends within its header")
    header_end = _PREFIX.size + header_length
    node = unpack(view[_PREFIX.size : header_end], "header")
    return _TreeReader(view[_aligned(header_end) :], guard_packed).value(node, 0)


def _aligned(position: int) -> int:
    return -(-position // ALIGNMENT) * ALIGNMENT


class _TreeWriter:
    """Turns values into header nodes and collects the array buffers."""

    def __init__(self, arrays: list[Buffer], guard_packed: bool) -> None:
        self.arrays = arrays
        self.guard_packed = guard_packed
        self.size = 0

    def node(self, value: Any, path: str, depth: int) -> Any:
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
        if kind in _encoders:
            name, to_tree = _encoders[kind]
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
            flat.append(key if type(key) is not int else self.node(key, path, depth))
            flat.append(self.node(item, f"{path}/{key}", depth + 1))
        return ["d", flat]

    def _big_int(self, value: int, path: str) -> Any:
        if value.bit_length() > _MAX_INT_DIGITS * 3:
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
        dense = tensor.layout is torch.strided and not tensor.is_quantized
        if not dense or tensor.device.type == "meta":
            raise EncodeError(f"{path}: only dense torch tensors can be published")
        flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
        raw = flat.view(torch.uint8).numpy() if flat.numel() else np.empty(0, np.uint8)
        return ["T", name, list(tensor.shape), self._buffer(raw)]

    def _buffer(self, raw: Buffer) -> int:
        offset = self.size
        self.arrays.append(raw)
        self.size = _aligned(offset + raw.size)
        return offset


class _TreeReader:
    """Rebuilds values from header nodes of unknown origin."""

    def __init__(self, buffers: memoryview, guard_packed: bool) -> None:
        self.buffers = buffers
        self.guard_packed = guard_packed
        # Honest buffers never overlap. Without this, a small blob could name one buffer a million
        # times and make the reader take a million times the memory.
        self.budget = len(buffers)

    def value(self, node: Any, depth: int) -> Any:
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
                if len(digits) > _MAX_INT_DIGITS or not digits.removeprefix("-").isdecimal():
                    raise DecodeError("not an int")
                return int(digits)
            case "x", [str(name), inner]:
                if name not in _decoders:
                    raise DecodeError(f"type {name[:40]!r} is not registered in this process")
                return _decoders[name](self.value(inner, depth + 1))
            case _:
                raise DecodeError(f"unknown node {str(tag)[:8]!r}")

    def _dict(self, flat: list[Any], depth: int) -> dict[Any, Any]:
        if len(flat) % 2:
            raise DecodeError("dict with a key but no value")
        result: dict[Any, Any] = {}
        for position in range(0, len(flat), 2):
            key = flat[position]
            if isinstance(key, list):
                key = self.value(key, depth + 1)
            if key is not None and type(key) not in (str, int):
                raise DecodeError("dict with a key that is neither str, int nor None")
            if key in result:
                raise DecodeError("dict with a key that occurs twice")
            result[key] = self.value(flat[position + 1], depth + 1)
        return result

    def _array(self, dtype: Any, shape: Any, fortran: bool, offset: int) -> np.ndarray[Any, Any]:
        restored, lengths = restore_dtype(dtype), checked_shape(shape)
        raw = self._take(offset, _count(lengths) * restored.itemsize)
        array = np.frombuffer(raw, restored).copy()
        return array.reshape(lengths[::-1]).T if fortran else array.reshape(lengths)

    def _tensor(self, name: str, shape: tuple[int, ...], offset: int) -> Any:
        try:
            import torch
        except ImportError as error:
            raise DecodeError(
                "the state holds torch tensors: pip install torch in this process's environment"
            ) from error
        dtype = getattr(torch, name, None)
        if not isinstance(dtype, torch.dtype):
            raise DecodeError(f"unknown torch dtype {name[:40]!r}")
        count = _count(shape)
        if count == 0:
            return torch.empty(shape, dtype=dtype)
        raw = bytearray(self._take(offset, count * dtype.itemsize))
        return torch.frombuffer(raw, dtype=torch.uint8).view(dtype).reshape(shape)

    def _take(self, offset: int, size: int) -> memoryview:
        self.budget -= size
        if offset < 0 or size < 0 or offset + size > len(self.buffers) or self.budget < 0:
            raise DecodeError("array lies outside of the blob")
        return self.buffers[offset : offset + size]

    def _guarded(self, value: Any) -> Any:
        if self.guard_packed and packed_npy.looks_packed(value):
            raise DecodeError("a text or buffer that RLlib would load as a packed array")
        return value


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for length in shape:
        count *= length
    return count
