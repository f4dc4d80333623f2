"""Encodes components for publishing: into memory that is there already, shared with the node."""

from __future__ import annotations

from typing import Any

from redis_state_sync.blobs import Blob
from redis_state_sync.buffer_pool import BufferPool
from redis_state_sync.codec import Encoding
from redis_state_sync.components import is_weights
from redis_state_sync.fetcher import SMALLEST_SHARED
from redis_state_sync.node_cache import NodeCache
from redis_state_sync.slot_pool import SlotPool


class Encoder:
    """What a learner pays for a publish: one copy of what changed.

    Args:
        algorithm: Of the digests, see `Manifest.algorithm`.
        cache: The node's, if there is one.
    """

    def __init__(self, algorithm: str, cache: NodeCache | None) -> None:
        self._algorithm = algorithm
        self._slots = SlotPool(cache)
        self._buffers = BufferPool()

    def close(self) -> None:
        """Lets go of memory. What was encoded stays as it is."""
        self._slots.close()

    def encode(self, name: str, tree: Any, before: Blob | None) -> Blob:
        """Copies a component.

        Args:
            name: Of the component.
            tree: Its values, see `redis_state_sync.codec`.
            before: What it was last. If nothing changed, this is what is returned.

        Raises:
            EncodeError: If a value can not be published.
        """
        encoding = Encoding(tree, path=name, guard_packed=not is_weights(name))
        if before is not None and encoding.is_in(before.data):
            return before
        taken = self._slots.take(encoding.size) if encoding.size >= SMALLEST_SHARED else None
        if taken is not None:
            buffer, slot = taken
            encoding.write(buffer)
            return Blob(buffer, self._algorithm, slot)
        buffer = self._buffers.take(encoding.size)
        encoding.write(buffer)
        return Blob(buffer, self._algorithm)
