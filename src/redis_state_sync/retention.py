"""Which versions to keep: the newest K and the pinned ones; what only others used is dropped."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from redis_state_sync.errors import DecodeError
from redis_state_sync.keys import Keys
from redis_state_sync.manifest import Manifest
from redis_state_sync.store import Store
from redis_state_sync.version import Version

_LOAD_AT_MOST = 1000
# What is not ours lies just below our own newest versions.
_LOOK_BEYOND = 16


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

    def load(self, *, timeout: float, count: int = _LOAD_AT_MOST) -> set[str]:
        """Reads what is there, whoever left it, so that it is dropped in its turn.

        Args:
            timeout: Seconds.
            count: How many of the newest versions to look at.

        Returns:
            The digests of versions that were known and are not there any more.
        """
        entries = self._store.newest(self._keys, count=count, timeout=timeout)
        there = {entry.version for entry in entries}
        oldest = min(there) if len(entries) == count else None
        gone = [v for v in self._stored if v not in there and (oldest is None or v > oldest)]
        left = {d for version in gone for d in self._stored.pop(version).digests()}
        for entry in entries:
            if entry.version in self._stored:
                continue
            try:
                self._stored[entry.version] = Manifest.decode(entry.manifest)
            except DecodeError:
                continue  # Not ours to judge: it leaves with the namespace's expiry.
        return left

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
            timeout: Seconds for each call of the store.

        Raises:
            StoreError: If the store fails; what was to be dropped is dropped next time.
        """
        self._stored[version] = manifest
        self._drop(self._history, strays, timeout)

    def make_room(self, *, strays: Collection[str] = (), timeout: float) -> list[Version]:
        """The store is full: drops all but the newest version and the pinned ones.

        Returns:
            The versions that were dropped.

        Raises:
            StoreError: As `keep`.
        """
        return self._drop(1, strays, timeout)

    def _drop(self, history: int, strays: Collection[str], timeout: float) -> list[Version]:
        # Looked at anew each time: a version whose reply was lost, another learner's, or one that
        # a failover brought back is dropped in its turn like our own.
        left = self.load(timeout=timeout, count=history + _LOOK_BEYOND)
        pinned = set(self._store.pins(self._keys, timeout=timeout).values())
        versions, digests = to_drop(self._stored, pinned, history)
        used = {d for v, m in self._stored.items() if v not in versions for d in m.digests()}
        # In the order of names, so that equal runs are equal to the byte.
        digests += sorted(({*strays} | left) - used - {*digests})
        if versions or digests:
            self._store.drop(self._keys, versions, digests, timeout=timeout)
            for gone in versions:
                del self._stored[gone]
        return versions

    def other_digests(self, newest: Manifest) -> list[str]:
        """Digests of kept versions that the newest one does not use."""
        own = newest.digests()
        others = {d: None for m in self._stored.values() for d in m.digests() if d not in own}
        return list(others)
