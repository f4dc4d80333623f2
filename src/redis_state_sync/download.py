"""Brings the blobs of one version into memory that is there already, and checks every one."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from redis_state_sync.errors import BlobMissingError, IntegrityError
from redis_state_sync.keys import Keys
from redis_state_sync.manifest import Component, digest_of
from redis_state_sync.store import Store
from redis_state_sync.version import Version

ErrorT = TypeVar("ErrorT", BlobMissingError, IntegrityError)


class Download:
    """Of one version.

    Args:
        store: Where the blobs are.
        keys: Of which namespace.
        version: Which, for messages.
        algorithm: Of the digests, see `Manifest.algorithm`.
        deadline: A `time.monotonic()` after which it is given up.
    """

    def __init__(
        self, store: Store, keys: Keys, version: Version, algorithm: str, deadline: float
    ) -> None:
        self.algorithm = algorithm
        self.deadline = deadline
        self.received = 0
        """Bytes of blobs that came from the store."""
        self._store = store
        self._keys = keys
        self._version = version

    def fill_one(
        self, component: Component, target: memoryview, progress: Callable[[], None]
    ) -> None:
        """As `fill`, for one component."""
        self.fill([(component, target)], progress)

    def fill(
        self,
        targets: Sequence[tuple[Component, memoryview]],
        progress: Callable[[], None] | None = None,
    ) -> None:
        """Receives components. A blob that occurs again and again is fetched once.

        Args:
            targets: Each a component and where it goes: shape ``(component.size,)``, uint8.
            progress: Called with each blob that comes, and perhaps in between.

        Raises:
            BlobMissingError: If a blob is gone.
            IntegrityError: If one does not have the size or digest that the manifest names.
            StoreError: If the store fails. In each case what is in the targets is undefined.
        """
        places: dict[str, memoryview] = {}
        again: list[tuple[memoryview, str]] = []
        for component, target in targets:
            start = 0
            for piece in component.pieces:
                view = target[start : start + piece.size]
                start += piece.size
                if piece.digest in places:
                    again.append((view, piece.digest))
                else:
                    places[piece.digest] = view
        digests: dict[int, str] = {}

        def arrived(blob: Any) -> None:
            if isinstance(blob, memoryview):  # While the next one is on its way.
                digests[id(blob)] = digest_of(blob, self.algorithm)
            if progress is not None:
                progress()

        received = self._store.get_blobs(
            self._keys,
            list(places),
            timeout=max(0.001, self.deadline - time.monotonic()),
            limit=sum(map(len, places.values())),
            into=list(places.values()),
            arrived=arrived,
        )
        for (digest, view), blob in zip(places.items(), received, strict=True):
            self._check(digest, view, blob, digests.get(id(blob)))
        for view, digest in again:
            if len(view) != len(places[digest]):
                raise self._damaged(digest)
            view[:] = places[digest]
        self.received += sum(map(len, places.values()))

    def _check(
        self, digest: str, view: memoryview, blob: bytes | memoryview | None, found: str | None
    ) -> None:
        """Raises unless a blob is the one that was asked for. It is in its place then."""
        if blob is None:
            raise _about(
                digest,
                BlobMissingError(
                    f"{self._store.describe()}: version {self._version} of namespace "
                    f"{self._keys.namespace!r} lacks blob {digest} (superseded or evicted)"
                ),
            )
        if len(blob) != len(view) or (found or digest_of(blob, self.algorithm)) != digest:
            raise self._damaged(digest)
        if blob is not view:
            view[:] = blob

    def _damaged(self, digest: str) -> IntegrityError:
        return _about(
            digest,
            IntegrityError(
                f"{self._store.describe()}: blob {digest} of version {self._version} is damaged"
            ),
        )


def _about(digest: str, error: ErrorT) -> ErrorT:
    # Not in a variable where it is raised: the error would hold the frame that holds it, and with
    # it all that was received.
    error.digest = digest
    return error
