"""Fetches a version's blobs: only those that this reader does not hold, and checks every one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from redis_state_sync.errors import BlobMissingError, DecodeError, IntegrityError
from redis_state_sync.keys import Keys
from redis_state_sync.manifest import Component, Manifest, digest_of
from redis_state_sync.store import Store
from redis_state_sync.version import Version

ErrorT = TypeVar("ErrorT", BlobMissingError, IntegrityError)


class Fetcher:
    """Holds the encoded components of one version: once the state's size in memory.

    Args:
        store: Where to fetch.
        keys: Of which namespace.
        max_state_bytes: Most bytes of a version; more is refused before anything is fetched.
    """

    def __init__(self, store: Store, keys: Keys, max_state_bytes: int) -> None:
        self._store = store
        self._keys = keys
        self._max_state_bytes = max_state_bytes
        self._components: Mapping[str, Component] = {}
        self._blobs: Mapping[str, bytes | bytearray] = {}

    def fetch(
        self, version: Version, manifest: Manifest, *, timeout: float
    ) -> tuple[Mapping[str, bytes | bytearray], int]:
        """Fetches what the manifest names and is not held yet.

        Returns:
            Component name -> encoded bytes, of the whole version; and how many bytes were fetched.

        Raises:
            DecodeError: If the manifest names more than `max_state_bytes`.
            BlobMissingError: If a blob is gone.
            IntegrityError: If one does not have the size or digest that the manifest names.
            StoreError: If the store fails. In each case what was held is still held.
        """
        if manifest.size > self._max_state_bytes:
            raise DecodeError(
                f"{self._store.describe()}: version {version} of namespace "
                f"{self._keys.namespace!r} claims {manifest.size} bytes; max_state_bytes is "
                f"{self._max_state_bytes}: raise it if states are meant to be so large"
            )
        wanted = {
            name: component
            for name, component in manifest.components.items()
            if self._components.get(name) != component
        }
        pieces = {p.digest: p.size for c in wanted.values() for p in c.pieces}
        data = self._pieces(version, pieces, manifest.algorithm, timeout)
        blobs = {n: b for n, b in self._blobs.items() if n in manifest.components}
        for name, component in wanted.items():
            blobs[name] = _joined([data[p.digest] for p in component.pieces])
        self._blobs, self._components = blobs, manifest.components
        return blobs, sum(pieces.values())

    def _pieces(
        self, version: Version, pieces: Mapping[str, int], algorithm: str, timeout: float
    ) -> dict[str, bytes]:
        where = self._store.describe()
        received = self._store.get_blobs(
            self._keys, list(pieces), timeout=timeout, limit=sum(pieces.values())
        )
        data: dict[str, bytes] = {}
        for (digest, size), blob in zip(pieces.items(), received, strict=True):
            if blob is None:
                raise _about(
                    digest,
                    BlobMissingError(
                        f"{where}: version {version} of namespace {self._keys.namespace!r} lacks "
                        f"blob {digest} (superseded or evicted)"
                    ),
                )
            if len(blob) != size or digest_of(blob, algorithm) != digest:
                raise _about(
                    digest,
                    IntegrityError(f"{where}: blob {digest} of version {version} is damaged"),
                )
            data[digest] = blob
        return data


def _about(digest: str, error: ErrorT) -> ErrorT:
    # Not in a variable where it is raised: the error would hold the frame that holds it, and with
    # it all that was received.
    error.digest = digest
    return error


def _joined(pieces: Sequence[bytes]) -> bytes | bytearray:
    return pieces[0] if len(pieces) == 1 else bytearray().join(pieces)
