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

    def take(self, size: int) -> Buffer:
        """Returns a buffer that nobody else has.

        Returns:
            Shape ``(size,)``, dtype uint8, at a multiple of 64 bytes; what is in it is undefined.
        """
        with self._lock:
            piece = self._best(size)
            if piece is None:
                piece = Piece(np.empty(size + ALIGNMENT, np.uint8))
            else:
                self._pieces.remove(piece)
            start = -piece.array.ctypes.data % ALIGNMENT
            taken = piece.array[start : start + size]
            self._pieces = worth_keeping([*self._pieces, piece])
            return taken

    def _best(self, size: int) -> Piece | None:
        """The smallest free one that is not much too large."""
        most = 2 * (size + ALIGNMENT)
        fitting = [p for p in self._pieces if size + ALIGNMENT <= p.array.size <= most and p.unused]
        return min(fitting, key=lambda piece: piece.array.size, default=None)
