"""Encoded components, cut into pieces that are named by their digest."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from redis_state_sync.codec import Buffer
from redis_state_sync.leases import Slot
from redis_state_sync.manifest import XXH3, Component, Piece, digest_of

# Old servers stall other clients while they answer with a large value; pieces of up to 4 MB cost
# nothing and keep them served.
PIECE_BYTES = 4 << 20


class Blob:
    """One encoded component. Digests are worked out when first asked for, off the training thread.

    Args:
        data: The encoded bytes, shape ``(n,)``, dtype uint8; never changed again.
        algorithm: Of the digests, see `Manifest.algorithm`.
        slot: Of the node's cache, if that is where the bytes are.
    """

    def __init__(self, data: Buffer, algorithm: str = XXH3, slot: Slot | None = None) -> None:
        self.data = data
        self._algorithm = algorithm
        self._slot = slot
        self._view = data.data

    def __len__(self) -> int:
        return len(self._view)

    def _cuts(self) -> Iterator[memoryview]:
        for start in range(0, len(self._view), PIECE_BYTES):
            yield self._view[start : start + PIECE_BYTES]

    @cached_property
    def component(self) -> Component:
        """What the manifest says about it."""
        return Component(
            tuple(Piece(digest_of(cut, self._algorithm), len(cut)) for cut in self._cuts())
        )

    def share(self, namespace: str) -> None:
        """Lets readers on this node find it, if it is in the node's cache."""
        if self._slot is not None:
            name = self.component.name_on_node(namespace, self._algorithm)
            if self._slot.commit(name) is not None:
                self._slot = None

    def pieces(self) -> Iterator[tuple[str, memoryview]]:
        """Digest and bytes of each piece, in order."""
        for piece, cut in zip(self.component.pieces, self._cuts(), strict=True):
            yield piece.digest, cut
