"""Memory that comes back by itself when the last view of it is gone; and how much of it to keep."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from redis_state_sync.wire import Buffer

# Bytes that nobody uses, for each byte in use. A state that is being replaced needs 1.
_SPARE = 2


class Piece:
    """Memory that is handed out as views of its array.

    CPython counts references. A view of a numpy array refers to the array, also if it is a view of
    a view, and memoryviews and tensors made from one do, too.

    Args:
        array: Shape ``(n,)``, dtype uint8. Nobody else keeps it.
    """

    def __init__(self, array: Buffer) -> None:
        self.array = array

    @property
    def references(self) -> int:
        """To the array, with that of this call."""
        return sys.getrefcount(self.array)

    @property
    def unused(self) -> bool:
        """Whether no view of it is left in this process."""
        return self.references <= _OF_NOBODY


# Measured: what a call itself counts is another number in other versions of Python, and may be one
# more before it was optimized. Too few only means that memory is not used again.
_OF_NOBODY = min(Piece(np.empty(0, np.uint8)).references for _ in range(100))

PieceT = TypeVar("PieceT", bound=Piece)


def worth_keeping(pieces: Sequence[PieceT]) -> list[PieceT]:
    """Leaves out what there is too much of: states that grow must not pile up.

    Args:
        pieces: The one that was used last comes last.

    Returns:
        Those in use, and of the others the last ones, at most twice as many bytes as are in use.
    """
    unused = {id(piece) for piece in pieces if piece.unused}
    spare = _SPARE * sum(piece.array.size for piece in pieces if id(piece) not in unused)
    kept: list[PieceT] = []
    for piece in reversed(pieces):
        if id(piece) in unused:
            spare -= piece.array.size
            if spare < 0:
                continue
        kept.append(piece)
    return kept[::-1]
