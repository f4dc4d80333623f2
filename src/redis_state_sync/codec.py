"""The wire format of one component: a msgpack header, then raw array buffers outside of it.

::

    b"RSS\\x01" | header length, uint32 little-endian | header | padding | buffer | padding | ...

The header is the tree: scalars as they are, everything else a list that begins with a tag.
Buffers start at multiples of 64 bytes, so that arrays can be used in place. Nothing is unpickled.

Lossless for None, bool, int (any size), float, str, bytes, list, tuple, dict with str, int or None
keys (an OrderedDict arrives as a dict), numpy arrays of every plain dtype and numpy scalars, and
torch tensors (by their bits, on the CPU, without gradient). Other types: `register_type`.

What a blob of unknown origin can cost, all in proportion to its own length:

- Header: msgpack of at most `MAX_HEADER_BYTES` and `MAX_ITEMS` items, without extension types and
  maps other than those of dtypes; nested at most 100 levels deep.
- Buffers: every array's is there in full, and no two nodes share one.
- Memory: at most 5 times the blob, 128 bytes more for each item, and 2 MiB.
- Time: at most a few microseconds for each byte of the header; inflating what may be a packed
  array, at most 64 MiB in all; no dict whose keys can be made to collide.
"""

from __future__ import annotations

import struct
from typing import Any

import msgpack
import numpy as np

from redis_state_sync.errors import DecodeError, EncodeError
from redis_state_sync.tree_reader import TreeReader
from redis_state_sync.tree_writer import TreeWriter
from redis_state_sync.untrusted import MAX_ITEMS, has_more_items, unpack
from redis_state_sync.wire import Buffer, aligned, register_type

__all__ = ["Buffer", "decode", "encode", "register_type"]

MAGIC = b"RSS\x01"
MAX_HEADER_BYTES = 256 << 20
_PREFIX = struct.Struct("<4sI")


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
    writer = TreeWriter(arrays, guard_packed)
    header = msgpack.packb(writer.node(tree, path, 0), use_bin_type=True)
    if len(header) > MAX_HEADER_BYTES:
        raise EncodeError(f"{path}: more than {MAX_HEADER_BYTES} bytes outside of arrays")
    if has_more_items(header, MAX_ITEMS):
        raise EncodeError(f"{path}: more than {MAX_ITEMS} values outside of arrays: use arrays")
    start = aligned(_PREFIX.size + len(header))
    blob = np.empty(start + writer.size, np.uint8)
    blob[:start] = 0
    blob[: _PREFIX.size] = np.frombuffer(_PREFIX.pack(MAGIC, len(header)), np.uint8)
    blob[_PREFIX.size : _PREFIX.size + len(header)] = np.frombuffer(header, np.uint8)
    position = start
    for array in arrays:
        end = position + array.size
        blob[position:end] = array
        position = aligned(end)
        blob[end:position] = 0
    return blob


def decode(
    data: bytes | bytearray | memoryview | Buffer, *, guard_packed: bool = True, copy: bool = True
) -> Any:
    """Rebuilds a tree; unless told otherwise, its arrays are fresh and writable.

    Args:
        data: A blob.
        guard_packed: Refuse texts and buffers that RLlib's array loader would load.
        copy: If False, arrays are views into `data`, which they keep alive: as writable as it is,
            and never two of one place. Copied all the same are tensors of `data` that is
            read-only (torch has none of these), and what is not aligned to its items.

    Raises:
        DecodeError: If `data` is not a well-formed blob.
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
    return TreeReader(view[aligned(header_end) :], guard_packed, copy).value(node, 0)
