"""Shared memory for encoded components that is used again once nobody on the node needs it."""

from __future__ import annotations

import secrets
import threading

import numpy as np

from redis_state_sync.leases import Slot
from redis_state_sync.node_cache import NodeCache
from redis_state_sync.spare_memory import Piece, worth_keeping
from redis_state_sync.wire import Buffer


class _Entry(Piece):
    def __init__(self, slot: Slot) -> None:
        super().__init__(np.frombuffer(slot.buffer, np.uint8))
        self.slot = slot


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
        # The one that was taken last comes last.
        self._entries: list[_Entry] = []
        self._taken = 0

    def take(self, size: int) -> tuple[Buffer, Slot] | None:
        """Returns memory that nobody else has, and the slot to commit once it is written.

        Returns:
            The memory, shape ``(size,)``, dtype uint8; what is in it is undefined. None: there is
            no cache, or no room in it.
        """
        with self._lock:
            again = self._again(size)
            entry = again or self._fresh(size)
            if entry is None:
                self._entries = worth_keeping(self._entries)
                return None
            taken = entry.array[:]
            self._entries.append(entry)
            self._taken += 1
            # Not each time: a state may have many components.
            if again is None or self._taken >= len(self._entries):
                self._entries, self._taken = worth_keeping(self._entries), 0
            return taken, entry.slot

    def close(self) -> None:
        """Lets go of all that is not in use, and of the cache."""
        with self._lock:
            self._cache = None
            self._entries.clear()

    def _again(self, size: int) -> _Entry | None:
        """One that is there, taken out of the list."""
        for entry in self._entries.copy():
            if entry.array.size != size or not entry.unused:
                continue
            try:
                mine = entry.slot.reclaim()
            except OSError:
                # Nobody could find it any more, and its memory would be lost as long as it is here.
                self._entries.remove(entry)
                continue
            if mine:
                self._entries.remove(entry)
                return entry
        return None

    def _fresh(self, size: int) -> _Entry | None:
        slot = self._cache.slot(secrets.token_hex(16), size) if self._cache else None
        return None if slot is None else _Entry(slot)
