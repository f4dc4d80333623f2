"""A store in memory that counts as one elsewhere: its readers use the node's cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from redis_state_sync.keys import Keys
from redis_state_sync.memory_store import MemoryStore


class NodeStore(MemoryStore):
    """What was asked of it can be looked at, and what it answers can be changed.

    Args:
        places: Put blobs where the reader wants them, as the store on Redis does; else return
            bytes of its own, as stores of other people may.
    """

    in_process = False

    def __init__(self, *, places: bool = True) -> None:
        super().__init__("elsewhere")
        self.places = places
        self.asked: list[str] = []
        """The digests of the blobs that were asked for."""
        self.answers: dict[str, bytes | None] = {}
        """Digest -> what to answer in place of what is there."""

    def get_blobs(
        self,
        keys: Keys,
        digests: Sequence[str],
        *,
        into: Sequence[memoryview] = (),
        arrived: Callable[[Any], None] | None = None,
        **kwargs: Any,
    ) -> list[bytes | memoryview | None]:
        """As the store's."""
        self.asked += digests
        found: list[bytes | memoryview | None] = []
        for place, blob in enumerate(super().get_blobs(keys, digests, **kwargs)):
            answer: bytes | memoryview | None = self.answers.get(digests[place], blob)
            if self.places and into and answer is not None and len(answer) == len(into[place]):
                into[place][:] = answer
                answer = into[place]
            if arrived is not None:
                arrived(answer)
            found.append(answer)
        return found
