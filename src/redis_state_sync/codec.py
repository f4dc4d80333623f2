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

__all__ = ["Buffer", "Encoding", "decode", "encode", "register_type"]

MAGIC = b"RSS\x01"
MAX_HEADER_BYTES = 256 << 20
_PREFIX = struct.Struct("<4sI")
# Small enough to stay in a core's cache, with the comparison's own result.
_COMPARED_AT_ONCE = 256 << 10
_BEGINNING = 64
# numpy gives the interpreter back while it copies, and has to wait for it again for as long as a
# thread that is busy with Python keeps it: much longer than it copies so little.
_WITHOUT_A_BREAK = 16 << 20


class Encoding:
    """A tree that is about to be copied into one contiguous blob.

    Args:
        tree: The values, see the module's docstring.
        path: What to call the tree in error messages.
        guard_packed: Refuse buffers that `decode` with the same argument would refuse.

    Raises:
        EncodeError: If a value can not be published; the message names its path.
    """

    def __init__(self, tree: Any, *, path: str = "", guard_packed: bool = True) -> None:
        arrays: list[Buffer] = []
        writer = TreeWriter(arrays, guard_packed)
        header = msgpack.packb(writer.node(tree, path, 0), use_bin_type=True)
        if len(header) > MAX_HEADER_BYTES:
            raise EncodeError(f"{path}: more than {MAX_HEADER_BYTES} bytes outside of arrays")
        if has_more_items(header, MAX_ITEMS):
            raise EncodeError(f"{path}: more than {MAX_ITEMS} values outside of arrays: use arrays")
        start = aligned(_PREFIX.size + len(header))
        front = np.zeros(start, np.uint8)
        front[: _PREFIX.size] = np.frombuffer(_PREFIX.pack(MAGIC, len(header)), np.uint8)
        front[_PREFIX.size : _PREFIX.size + len(header)] = np.frombuffer(header, np.uint8)
        self._parts = [front, *arrays]
        self.size = start + writer.size
        """Bytes of the blob."""

    def write(self, blob: Buffer) -> None:
        """Copies the tree; later changes to its arrays do not reach the blob.

        Args:
            blob: Where to: shape ``(size,)``, dtype uint8.
        """
        position = 0
        view = blob.data
        for part in self._parts:
            end = position + part.size
            if part.size < _WITHOUT_A_BREAK:
                view[position:end] = part.data
            else:
                blob[position:end] = part
            position = aligned(end)
            view[end:position] = bytes(position - end)

    def is_in(self, blob: Buffer) -> bool:
        """Whether a blob holds just this tree already. Where it does not, that is seen soon."""
        if blob.size != self.size:
            return False
        position = 0
        for part in self._parts:
            beginning = part[:_BEGINNING].tobytes()
            if blob[position : position + len(beginning)].tobytes() != beginning:
                return False  # So end nearly all comparisons with weights that are trained.
            for start in range(0, part.size, _COMPARED_AT_ONCE):
                mine = part[start : start + _COMPARED_AT_ONCE]
                begin = position + start
                if not np.array_equal(mine, blob[begin : begin + mine.size]):
                    return False
            position = aligned(position + part.size)
        return True


def encode(tree: Any, *, path: str = "", guard_packed: bool = True) -> Buffer:
    """Copies a tree into one contiguous blob; see `Encoding`.

    Returns:
        The blob, shape ``(n,)``, dtype uint8.

    Raises:
        EncodeError: If a value can not be published; the message names its path.
    """
    encoding = Encoding(tree, path=path, guard_packed=guard_packed)
    blob = np.empty(encoding.size, np.uint8)
    encoding.write(blob)
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
