"""Old versions of a namespace: what there is, by number or by a name that was given to one."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from redis_state_sync.errors import CodecError, UnknownVersionError, VersionError
from redis_state_sync.fetcher import Fetcher
from redis_state_sync.keyring import Keyring, find_keyring
from redis_state_sync.keys import Keys
from redis_state_sync.manifest import Manifest
from redis_state_sync.node_cache import open_node_cache
from redis_state_sync.pinning import NEWEST, Pinning, check_pin_name
from redis_state_sync.records import Records
from redis_state_sync.retention import NOTICE_S
from redis_state_sync.settings import MAX_STATE_BYTES, check_seconds
from redis_state_sync.snapshot import Snapshot
from redis_state_sync.store import Entry, Store, check_store
from redis_state_sync.version import Version

_MOST_VERSIONS = 1000
_MOST_NAMED = 12


@dataclass(frozen=True, slots=True)
class StoredVersion:
    """One state that the store holds.

    Args:
        version: Which.
        manifest: What it consists of; None if its record can not be read.
        pins: The names that it has, sorted.
        problem: Why the record can not be read, or None.
    """

    version: Version
    manifest: Manifest | None
    pins: tuple[str, ...]
    problem: str | None = None


class History:
    """The versions of a namespace, for anyone who may read it::

        history = History(open_store("redis://localhost"), "my-run")
        history.pin("best", "newest")
        opponent = history.fetch("best")
        history.unpin("best")

    A pinned version stays, whole, until it is unpinned: no learner drops it, and it does not
    expire. A version is asked for by itself, as text, by a pin's name, or as ``"newest"``.

    Args:
        store: Where.
        namespace: Which shared state.
        keyring: Checks what is read. Default: the environment's, if it has one.
        timeout_s: Most seconds for each call of the store.
        transfer_timeout_s: Most seconds for one fetch.
        ttl_s: Seconds after which what is unpinned expires, unless a learner looks after it.
        max_state_bytes: See `Settings`.
        node_cache_bytes: See `Settings`.

    Raises:
        SettingsError: If an argument is wrong.
    """

    def __init__(
        self,
        store: Store,
        namespace: str,
        *,
        keyring: Keyring | None = None,
        timeout_s: float = 5.0,
        transfer_timeout_s: float = 60.0,
        ttl_s: float = 86_400.0,
        max_state_bytes: int = MAX_STATE_BYTES,
        node_cache_bytes: int | None = None,
    ) -> None:
        check_store(store)
        for setting, seconds in (
            ("timeout_s", timeout_s),
            ("transfer_timeout_s", transfer_timeout_s),
            ("ttl_s", ttl_s),
        ):
            check_seconds(setting, seconds)
        self.store = store
        self.keys = Keys(namespace)
        self.records = Records(self.keys, keyring or find_keyring())
        self.timeout_s = timeout_s
        self.ttl_s = ttl_s
        self._transfer_timeout_s = transfer_timeout_s
        self._pinning = Pinning(store, self.keys, self.records, timeout_s=timeout_s, ttl_s=ttl_s)
        self._fetcher = Fetcher(
            store,
            self.keys,
            max_state_bytes,
            functools.partial(
                open_node_cache, limit_bytes=0 if store.in_process else node_cache_bytes
            ),
            stall_timeout_s=NOTICE_S,
        )

    def __repr__(self) -> str:
        return f"History({self.keys.namespace!r})"

    def versions(self) -> list[StoredVersion]:
        """The states that there are, newest first; of those that are not pinned at most 1000.

        Raises:
            StoreError: If the store fails.
        """
        names: dict[Version, list[str]] = {}
        for name, version in sorted(self.pins().items()):
            names.setdefault(version, []).append(name)
        entries = self.store.newest(self.keys, count=_MOST_VERSIONS, timeout=self.timeout_s)
        records = {entry.version: entry.manifest for entry in entries}
        missing = sorted(names.keys() - records.keys())
        if missing:
            records |= self.store.find(self.keys, missing, timeout=self.timeout_s)
        return [
            self._described(Entry(version, records[version]), tuple(names.get(version, ())))
            for version in sorted(records, reverse=True)
            if not version.is_claim
        ]

    def pins(self) -> dict[str, Version]:
        """Pin name -> pinned version.

        Raises:
            StoreError: If the store fails.
        """
        return self.store.pins(self.keys, timeout=self.timeout_s)

    def find(self, which: Version | str) -> tuple[Entry, Manifest]:
        """The record of one version.

        Args:
            which: A version, as such or written; a pin's name; or ``"newest"``.

        Raises:
            UnknownVersionError: If there is no such one.
            CodecError: If its record is damaged, or not signed as it must be.
            StoreError: If the store fails.
        """
        if which == NEWEST:
            return self._newest()
        version = self._resolve(which)
        found = self.store.find(self.keys, [version], timeout=self.timeout_s)
        if version not in found or version.is_claim:
            raise self._unknown(f"version {version}")
        entry = Entry(version, found[version])
        return entry, self._opened(entry)

    def fetch(self, which: Version | str) -> Snapshot:
        """Fetches one version. What the last fetched one holds as well is not sent again.

        Args:
            which: As `find`.

        Raises:
            BlobMissingError: If part of it expired or was evicted.
            UnknownVersionError: As `find`.
            CodecError: As `find`, and if what is fetched is damaged.
            StoreError: If the store fails.
        """
        entry, manifest = self.find(which)
        blobs, _ = self._fetcher.fetch(entry.version, manifest, timeout=self._transfer_timeout_s)
        return Snapshot(entry.version, manifest, blobs, frozenset(manifest.components))

    def pin(self, name: str, which: Version | str = NEWEST) -> Version:
        """Names a version, which stays from then on. A name that is taken is given anew.

        Args:
            name: 1 to 200 characters without white space and ``!``.
            which: As `find`.

        Returns:
            The pinned version. It is whole.

        Raises:
            SettingsError: If the name is not valid.
            UnknownVersionError: As `find`; also if a learner drops it at this very moment.
            BlobMissingError: If part of it is gone: it can not be pinned.
            CodecError: As `find`.
            StoreError: If the store fails.
        """
        check_pin_name(name)
        entry, manifest = self.find(which)
        self._pinning.pin(name, entry, manifest)
        return entry.version

    def unpin(self, name: str) -> Version:
        """Takes a name away. A version without any goes its way: dropped, or expired, in its turn.

        Returns:
            The version that had it.

        Raises:
            UnknownVersionError: If there is no such pin.
            StoreError: If the store fails.
        """
        version = self.pins().get(name)
        if version is None:
            raise self._unknown(f"pin {name!r}")
        self._pinning.unpin(name, version)
        return version

    def close(self) -> None:
        """Closes the store's connection. The object can be used again."""
        self.store.close()

    def _newest(self) -> tuple[Entry, Manifest]:
        for entry in self.store.newest(self.keys, count=_MOST_VERSIONS, timeout=self.timeout_s):
            if not entry.version.is_claim:
                return entry, self._opened(entry)
        raise self._unknown("version")

    def _resolve(self, which: Version | str) -> Version:
        if isinstance(which, Version):
            return which
        pinned = self.pins().get(which)
        if pinned is not None:
            return pinned
        try:
            return Version.parse(which)
        except VersionError:
            raise self._unknown(f"pin {str(which)[:80]!r}") from None

    def _unknown(self, what: str) -> UnknownVersionError:
        there = self.versions()
        texts = [
            str(stored.version) + (f" ({', '.join(stored.pins)})" if stored.pins else "")
            for stored in there
        ]
        shown = ", ".join(texts[:_MOST_NAMED]) or "none"
        more = f" and {len(texts) - _MOST_NAMED} more" if len(texts) > _MOST_NAMED else ""
        return UnknownVersionError(
            f"namespace {self.keys.namespace!r} at {self.store.describe()} has no {what}; there "
            f"are, newest first: {shown}{more}"
        )

    def _opened(self, entry: Entry) -> Manifest:
        try:
            return self.records.open(entry)
        except CodecError as error:
            raise type(error)(f"version {entry.version}: {error}") from error

    def _described(self, entry: Entry, pins: tuple[str, ...]) -> StoredVersion:
        try:
            return StoredVersion(entry.version, self.records.open(entry), pins)
        except CodecError as error:
            return StoredVersion(entry.version, None, pins, str(error))
