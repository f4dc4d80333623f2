"""Which versions to keep: the newest K and the pinned ones; what only others used is dropped."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from redis_state_sync.errors import DecodeError
from redis_state_sync.keys import Keys
from redis_state_sync.manifest import Manifest
from redis_state_sync.store import Store
from redis_state_sync.version import Version

_LOAD_AT_MOST = 1000


def to_drop(
    stored: Mapping[Version, Manifest], pinned: Collection[Version], history: int
) -> tuple[list[Version], list[str]]:
    """Decides what goes.

    Args:
        stored: Every version in the store that is known, claims included.
        pinned: Versions that stay.
        history: How many of the newest states stay. The newest claim stays if nothing is newer.

    Returns:
        The versions to forget, and the digests of blobs that only these used.
    """
    states = sorted((v for v in stored if not v.is_claim), reverse=True)
    kept = set(states[:history]) | (set(pinned) & set(states))
    kept |= {v for v in stored if v.is_claim and v == max(stored)}
    dropped = sorted(set(stored) - kept)
    used = {digest for version in kept for digest in stored[version].digests()}
    orphans = {d: None for v in dropped for d in stored[v].digests() if d not in used}
    return dropped, list(orphans)


class Retention:
    """Knows what one namespace holds, and drops what need not be kept.

    Args:
        store: Where.
        keys: Of which namespace.
        history: How many of the newest versions to keep, at least 1.
    """

    def __init__(self, store: Store, keys: Keys, history: int) -> None:
        self._store = store
        self._keys = keys
        self._history = history
        self._stored: dict[Version, Manifest] = {}

    def load(self, *, timeout: float) -> None:
        """Reads what earlier learners left, so that it is dropped in its turn."""
        entries = self._store.newest(self._keys, count=_LOAD_AT_MOST, timeout=timeout)
        for entry in entries:
            try:
                self._stored[entry.version] = Manifest.decode(entry.manifest)
            except DecodeError:
                continue  # Not ours to judge: it leaves with the namespace's expiry.

    def keep(
        self,
        version: Version,
        manifest: Manifest,
        *,
        strays: Collection[str] = (),
        timeout: float,
    ) -> None:
        """A version was stored: drops what it pushes out.

        Args:
            version: Which one.
            manifest: Its manifest.
            strays: Digests of blobs that were uploaded, perhaps for a version that never was.
            timeout: Seconds for all of it.

        Raises:
            StoreError: If the store fails; what was to be dropped is dropped next time.
        """
        self._stored[version] = manifest
        pinned = set(self._store.pins(self._keys, timeout=timeout).values())
        versions, digests = to_drop(self._stored, pinned, self._history)
        used = {d for v, m in self._stored.items() if v not in versions for d in m.digests()}
        digests += [d for d in strays if d not in used and d not in digests]
        if versions or digests:
            self._store.drop(self._keys, versions, digests, timeout=timeout)
            for gone in versions:
                del self._stored[gone]

    def other_digests(self, newest: Manifest) -> list[str]:
        """Digests of kept versions that the newest one does not use."""
        own = newest.digests()
        others = {d: None for m in self._stored.values() for d in m.digests() if d not in own}
        return list(others)
