"""Memory for encoded components that is used again once nobody refers to it.

Pages that a process gets anew are many times slower to write than those it has, and a state has the
same size each time.
"""

from __future__ import annotations

import threading

import numpy as np

from redis_state_sync.spare_memory import Piece, worth_keeping
from redis_state_sync.wire import ALIGNMENT, Buffer


class BufferPool:
    """Hands out buffers; each comes back by itself when the last view of it is gone.

    Safe for threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # The one that was taken last comes last.
        self._pieces: list[Piece] = []
        self._taken = 0

    def take(self, size: int) -> Buffer:
        """Returns a buffer that nobody else has.

        Returns:
            Shape ``(size,)``, dtype uint8, at a multiple of 64 bytes; what is in it is undefined.
        """
        with self._lock:
            again = self._best(size)
            piece = again or Piece(np.empty(size + ALIGNMENT, np.uint8))
            if again is not None:
                self._pieces.remove(again)
            start = -piece.array.ctypes.data % ALIGNMENT
            taken = piece.array[start : start + size]
            self._pieces.append(piece)
            self._taken += 1
            # Not each time: a state may have many components.
            if again is None or self._taken >= len(self._pieces):
                self._pieces, self._taken = worth_keeping(self._pieces), 0
            return taken

    def _best(self, size: int) -> Piece | None:
        """The smallest free one that is not much too large."""
        wanted = size + ALIGNMENT
        best: Piece | None = None
        for piece in self._pieces:
            there = piece.array.size
            if wanted <= there <= 2 * wanted and (best is None or there < best.array.size):
                best = piece if piece.unused else best
                if best is not None and best.array.size == wanted:
                    break
        return best
