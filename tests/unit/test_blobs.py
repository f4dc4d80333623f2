"""Components are cut into pieces, named by their digest."""

from __future__ import annotations

import numpy as np
import pytest

from redis_state_sync.blobs import PIECE_BYTES, Blob
from redis_state_sync.manifest import digest_of


@pytest.mark.parametrize(
    "size", [1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 2 * PIECE_BYTES + 5]
)
def test_pieces_are_the_whole(size: int) -> None:
    """The pieces joined are the data, none is too large, and each has the digest it is named by."""
    data = np.arange(size, dtype=np.uint8)
    blob = Blob(data)
    pieces = list(blob.pieces())
    assert b"".join(piece for _, piece in pieces) == data.tobytes()
    assert [digest for digest, _ in pieces] == [digest_of(piece) for _, piece in pieces]
    assert max(len(piece) for _, piece in pieces) <= PIECE_BYTES
    assert [p.size for p in blob.component.pieces] == [len(piece) for _, piece in pieces]
    assert blob.component.size == size


def test_pieces_are_not_copied() -> None:
    """A piece is a view of the data: publishing takes no second copy of the weights."""
    data = np.zeros(2 * PIECE_BYTES, np.uint8)
    (_, first), _ = Blob(data).pieces()
    assert np.shares_memory(np.frombuffer(first, np.uint8), data)


def test_equal_data_has_equal_names() -> None:
    """An unchanged component has the same pieces, and one changed bit another name: C42."""
    data = np.zeros(9, np.uint8)
    changed = data.copy()
    changed[4] = 1
    assert Blob(data).component == Blob(data.copy()).component
    assert Blob(data).component != Blob(changed).component
