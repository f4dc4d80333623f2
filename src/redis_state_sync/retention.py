"""Which versions to keep: the newest K and the pinned ones; what only others used is dropped."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping

from redis_state_sync.errors import CodecError
from redis_state_sync.keys import Keys
from redis_state_sync.manifest import Manifest
from redis_state_sync.records import Records
from redis_state_sync.store import Entry, Store
from redis_state_sync.version import Version

_LOAD_AT_MOST = 1000
# What is not ours lies just below our own newest versions.
_LOOK_BEYOND = 16
# Longer than a look takes, unless the server hangs: then the learner must be free for the server
# that a failover puts in its place.
_LOOK_TIMEOUT_S = 2.0
# How long who pins a version waits for a learner that is about to drop it. What the learner has not
# begun in the first half of this time it leaves for the next time.
NOTICE_S = 10.0
# A look may show more to drop than was known before, and so on, while others publish, too.
_NOTICES = 3
# How many pinned blobs each look makes sure of: a failover may have lost what was set before.
_ASSURE = 64


# A record that can not be read (of another format, unsigned, damaged, planted) is None here.
Stored = Mapping[Version, Manifest | None]


def to_drop(
    stored: Stored, pinned: Collection[Version], history: int
) -> tuple[list[Version], list[str]]:
    """Decides what goes.

    Args:
        stored: Every version in the store that is known, claims included.
        pinned: Versions that stay.
        history: How many of the newest states stay. The newest claim stays if nothing is newer.

    Returns:
        The versions to forget, and the digests of blobs that only these used.
    """
    states = sorted((v for v, m in stored.items() if m and not v.is_claim), reverse=True)
    newest = states[:history]
    kept = set(newest) | (set(pinned) & set(stored))
    kept |= {v for v in stored if v.is_claim and v == max(stored)}
    # What can not be read counts as nothing, and goes once all that is kept is newer.
    kept |= {v for v, m in stored.items() if m is None and (not newest or v > newest[-1])}
    dropped = sorted(set(stored) - kept)
    used = _digests(stored, kept)
    return dropped, [digest for digest in _digests(stored, dropped) if digest not in used]


def _digests(stored: Stored, versions: Collection[Version]) -> dict[str, None]:
    manifests = [stored[version] for version in versions]
    return {digest: None for manifest in manifests if manifest for digest in manifest.digests()}


class Retention:
    """Knows what one namespace holds, and drops what need not be kept.

    Args:
        store: Where.
        keys: Of which namespace.
        records: Reads its records.
        history: How many of the newest versions to keep, at least 1.
        ttl_s: Seconds until what was unpinned expires.
    """

    def __init__(
        self, store: Store, keys: Keys, records: Records, history: int, ttl_s: float = 86_400.0
    ) -> None:
        self._store = store
        self._keys = keys
        self._records = records
        self._history = history
        self._stored: dict[Version, Manifest | None] = {}
        self._pinned: dict[Version, Manifest | None] = {}
        self._lasting: frozenset[str] = frozenset()
        self._ttl_s = ttl_s
        self._assured = 0

    @property
    def lasting(self) -> frozenset[str]:
        """Digests of the blobs that pinned versions use. They never expire."""
        return self._lasting

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
        left = _digests(self._stored, gone)
        for version in gone:
            del self._stored[version]
        for entry in entries:
            if entry.version not in self._stored:
                self._stored[entry.version] = self._read(entry)
        return set(left)

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

    def tidy(self, *, strays: Collection[str], timeout: float) -> None:
        """Drops uploads that no version uses, and what else need not be kept.

        Args:
            strays: As `keep`.
            timeout: As `keep`.

        Raises:
            StoreError: As `keep`.
        """
        self._drop(self._history, strays, timeout)

    def make_room(self, *, strays: Collection[str] = (), timeout: float) -> list[Version]:
        """The store is full: drops all but the newest version and the pinned ones.

        Returns:
            The versions that were dropped.

        Raises:
            StoreError: As `keep`.
        """
        return self._drop(1, strays, timeout)

    def look_at_pins(self, *, timeout: float) -> None:
        """Finds out what is pinned, and has it never expire.

        To be called after each refresh: that may have had blobs expire again which somebody pinned
        meanwhile.

        Args:
            timeout: Seconds for each call of the store.

        Raises:
            StoreError: If the store fails.
        """
        named = set(self._store.pins(self._keys, timeout=timeout).values())
        known = {**self._stored, **self._pinned}
        unknown = sorted(named - known.keys())
        if unknown:  # The stream expired since; what a pin needs did not.
            for version, record in self._store.find(self._keys, unknown, timeout=timeout).items():
                known[version] = self._read(Entry(version, record))
        pinned = {version: known[version] for version in named & known.keys()}
        lasting = frozenset(_digests(pinned, pinned))
        for digests, ttl_s in (
            (lasting - self._lasting | self._next_of(lasting), None),
            (self._lasting - lasting, self._ttl_s),
        ):
            if digests:
                self._store.set_expiry(self._keys, sorted(digests), ttl_s=ttl_s, timeout=timeout)
        self._pinned, self._lasting = pinned, lasting

    def _next_of(self, lasting: Collection[str]) -> set[str]:
        """A few of them in turn."""
        start = self._assured if self._assured < len(lasting) else 0
        self._assured = start + _ASSURE
        return {*sorted(lasting)[start : self._assured]}

    def _drop(self, history: int, strays: Collection[str], timeout: float) -> list[Version]:
        at_most = min(timeout, _LOOK_TIMEOUT_S)
        noticed: set[Version] = set()
        left: set[str] = set()
        for number in range(_NOTICES):
            doomed = set(to_drop(self._stored, self._pinned, history)[0])
            if number and doomed <= noticed:
                break
            since, noticed = time.monotonic(), doomed
            if doomed:
                # First say it, then look, then drop: see `Store.give_notice`.
                self._store.give_notice(self._keys, sorted(doomed), ttl_s=NOTICE_S, timeout=at_most)
            self.look_at_pins(timeout=at_most)
            # Looked at anew each time: a version whose reply was lost, another learner's, or one
            # that a failover brought back is dropped in its turn like our own.
            left |= self.load(timeout=at_most, count=history + _LOOK_BEYOND)
        kept = self._pinned.keys() | (self._stored.keys() - noticed)
        versions, digests = to_drop(self._stored, kept, history)
        used = _digests(self._stored, self._stored.keys() - {*versions}).keys() | self._lasting
        # In the order of names, so that equal runs are equal to the byte.
        digests += sorted(({*strays} | left) - {*digests})
        digests = [digest for digest in digests if digest not in used]
        if noticed and time.monotonic() - since > NOTICE_S / 2:
            return []  # Too late: who waits for the end of the notice must be able to rely on it.
        if noticed and not versions:
            self._store.give_notice(self._keys, [], ttl_s=NOTICE_S, timeout=at_most)
        if versions or digests:
            self._store.drop(self._keys, versions, digests, timeout=timeout)
            for gone in versions:
                del self._stored[gone]
        return versions

    def other_digests(self, newest: Manifest) -> list[str]:
        """Digests of kept versions that the newest one does not use."""
        own = newest.digests()
        known = {**self._pinned, **self._stored}
        return [digest for digest in _digests(known, known) if digest not in own]

    def _read(self, entry: Entry) -> Manifest | None:
        try:
            return self._records.open(entry)
        except CodecError:
            return None  # Which blobs it uses is unknown: they leave with the namespace's expiry.
