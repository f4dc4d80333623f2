"""Memory for encoded components that is used again once nobody refers to it.

Pages that a process gets anew are many times slower to write than those it has, and a state has the
same size each time.
"""

from __future__ import annotations

import sys
import threading

import numpy as np

from redis_state_sync.wire import ALIGNMENT, Buffer

# Who refers to a buffer that is free: the list, the loop's variable, the call itself.
_NOBODY = 3
# Memory that so many other buffers were taken after is given back: states of this size are over.
_KEEP_FOR = 64


class BufferPool:
    """Hands out buffers; each comes back by itself when the last view of it is gone.

    CPython counts references, views of an array refer to it, and memoryviews and tensors made from
    it do, too. Safe for threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turn = 0
        self._buffers: list[tuple[int, Buffer]] = []

    def take(self, size: int) -> Buffer:
        """Returns a buffer that nobody else has.

        Returns:
            Shape ``(size,)``, dtype uint8, at a multiple of 64 bytes; what is in it is undefined.
        """
        with self._lock:
            self._turn += 1
            place = self._best(size)
            if place is None:
                whole: Buffer = np.empty(size + ALIGNMENT, np.uint8)
            else:
                _, whole = self._buffers.pop(place)
            self._buffers = [
                (turn, buffer)
                for turn, buffer in self._buffers
                if self._turn - turn < _KEEP_FOR or sys.getrefcount(buffer) > _NOBODY + 1
            ]
            self._buffers.append((self._turn, whole))
        start = -whole.ctypes.data % ALIGNMENT
        return whole[start : start + size]

    def _best(self, size: int) -> int | None:
        """The smallest free one that is not much too large."""
        best = None
        for place, (_, buffer) in enumerate(self._buffers):
            if (
                size + ALIGNMENT <= buffer.size <= 2 * (size + ALIGNMENT)
                and (best is None or buffer.size < self._buffers[best][1].size)
                and sys.getrefcount(buffer) <= _NOBODY
            ):
                best = place
        return best
