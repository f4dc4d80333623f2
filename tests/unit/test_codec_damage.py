"""Blobs that were cut, flipped, re-ordered or put together from two."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

from redis_state_sync import packed_npy
from redis_state_sync.codec import MAGIC, decode, encode
from redis_state_sync.errors import CodecError, DecodeError
from tests.unit.trees import identical

# Something of every kind of node; the arrays' bytes are neither zero nor equal.
TREE: dict[Any, Any] = {
    "w": np.arange(1, 9, dtype=">f8").reshape(2, 4),
    "f": np.asfortranarray(np.arange(1, 7).reshape(2, 3)),
    1: [None, (2**70, "text", b"bytes"), True, -5, 1.5],
    None: np.int8(3),
    2**65: {"s": np.str_("x\0"), "d": np.zeros(1, [("a", "<f4"), ("b", "S3", (2,))])},
    "packed": packed_npy.pack(np.arange(1.0, 4.0)),
}
VALID = bytes(encode(TREE))


def header_end(blob: bytes) -> int:
    (length,) = struct.unpack_from("<I", blob, len(MAGIC))
    return -(-(8 + int(length)) // 64) * 64


def test_truncated_at_every_byte() -> None:
    """A blob that was cut off is a DecodeError, unless only the padding at its end is gone: C58."""
    needed = len(VALID.rstrip(b"\0"))
    for length in range(len(VALID)):
        if length < needed:
            with pytest.raises(DecodeError):
                decode(VALID[:length])
        else:
            _same_or_refused(VALID[:length])


def _same_or_refused(blob: bytes) -> None:
    try:
        assert identical(TREE, decode(blob))
    except DecodeError:
        pass


def test_a_bit_flipped_anywhere() -> None:
    """Each bit of a blob, flipped, gives a value or a DecodeError and nothing else: C58."""
    for position in range(len(VALID)):
        for bit in range(8):
            data = bytearray(VALID)
            data[position] ^= 1 << bit
            try:
                decode(bytes(data))
            except CodecError:
                pass


def test_buffers_in_another_order() -> None:
    """Buffers that changed places change values, never shapes, types or what else is there: C58."""
    start = header_end(VALID)
    blocks = [VALID[i : i + 64] for i in range(start, len(VALID), 64)]
    assert len(blocks) >= 3
    for shift in range(1, len(blocks)):
        turned = blocks[shift:] + blocks[:shift]
        read = decode(VALID[:start] + b"".join(turned))
        assert not identical(TREE, read)
        assert read.keys() == TREE.keys()
        assert (read["w"].shape, read["w"].dtype) == (TREE["w"].shape, TREE["w"].dtype)


OTHERS = [np.ones(1), {"w": np.ones((40, 40))}, [np.ones(3, "u1")] * 9, "no buffers", ["x" * 500]]


@pytest.mark.parametrize("other", [bytes(encode(tree)) for tree in OTHERS], ids=len)
def test_a_header_on_other_buffers(other: bytes) -> None:
    """The header of one blob before the buffers of another never reads beyond them: C58."""
    for head, tail in ((VALID, other), (other, VALID)):
        spliced = head[: header_end(head)] + tail[header_end(tail) :]
        enough = len(tail) - header_end(tail) >= len(head.rstrip(b"\0")) - header_end(head)
        if enough:
            decode(spliced)
        else:
            with pytest.raises(DecodeError):
                decode(spliced)


def test_a_header_length_of_another_blob() -> None:
    """A header length that fits another blob is a DecodeError: C58."""
    (length,) = struct.unpack_from("<I", VALID, len(MAGIC))
    for wrong in (0, 1, length - 1, length + 1, length + 64, 2**31, 2**32 - 1):
        with pytest.raises(DecodeError):
            decode(VALID[:4] + struct.pack("<I", wrong) + VALID[8:])
