"""Shared memory for encoded components that is used again once nobody on the node needs it."""

from __future__ import annotations

import secrets
import sys
import threading

import numpy as np

from redis_state_sync.leases import Slot
from redis_state_sync.node_cache import NodeCache
from redis_state_sync.wire import Buffer

# Who refers to an array that nobody uses: the entry, and the call that counts.
_NOBODY = 2
# Memory that so many other slots were taken after is given back: states of this size are over.
_KEEP_FOR = 64


class _Entry:
    def __init__(self, slot: Slot) -> None:
        self.slot = slot
        self.array: Buffer = np.frombuffer(slot.buffer, np.uint8)
        self.turn = 0

    @property
    def unused(self) -> bool:
        """Whether no view of it is left in this process."""
        return sys.getrefcount(self.array) <= _NOBODY


class SlotPool:
    """Hands out slots of the node's cache. The same one again, if it is of no use to anybody.

    Pages that were written before are many times faster to write than fresh ones, and so are those
    that are mapped already. Safe for threads.

    Args:
        cache: The node's, if there is one.
    """

    def __init__(self, cache: NodeCache | None) -> None:
        self._cache = cache
        self._lock = threading.Lock()
        self._turn = 0
        self._entries: list[_Entry] = []

    def take(self, size: int) -> tuple[Buffer, Slot] | None:
        """Returns memory that nobody else has, and the slot to commit once it is written.

        Returns:
            The memory, shape ``(size,)``, dtype uint8; what is in it is undefined. None: there is
            no cache, or no room in it.
        """
        with self._lock:
            self._turn += 1
            entry = self._again(size) or self._fresh(size)
            self._entries = [
                e for e in self._entries if self._turn - e.turn < _KEEP_FOR or not e.unused
            ]
            if entry is None:
                return None
            entry.turn = self._turn
            return entry.array[:], entry.slot

    def close(self) -> None:
        """Lets go of all that is not in use, and of the cache."""
        with self._lock:
            self._cache = None
            self._entries.clear()

    def _again(self, size: int) -> _Entry | None:
        for entry in self._entries:
            if entry.array.size == size and entry.unused and entry.slot.reclaim():
                return entry
        return None

    def _fresh(self, size: int) -> _Entry | None:
        slot = self._cache.slot(secrets.token_hex(16), size) if self._cache else None
        if slot is None:
            return None
        entry = _Entry(slot)
        self._entries.append(entry)
        return entry
