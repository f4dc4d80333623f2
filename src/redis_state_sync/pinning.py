"""Gives versions names, and takes them away, while a learner publishes and drops (ADR 13)."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping

from redis_state_sync.errors import (
    BlobMissingError,
    CodecError,
    SettingsError,
    StoreTimeoutError,
)
from redis_state_sync.keys import Keys
from redis_state_sync.manifest import Manifest
from redis_state_sync.records import Records
from redis_state_sync.retention import NOTICE_S
from redis_state_sync.store import Entry, Store
from redis_state_sync.version import Version

NEWEST = "newest"
"""What stands for the newest state wherever a version is asked for."""
_LOOK_EVERY_S = 0.02
_PIN_NAME = re.compile(r"[^\W_][^\s\x00-\x1f\x7f!]{0,199}\Z")
_VERSION = re.compile(r"\d+-\d+\Z")


def check_pin_name(name: object) -> str:
    """Returns `name` if a version can be pinned under it.

    Raises:
        SettingsError: If it is not a str of 1 to 200 characters without white space and ``!`` that
            begins with a letter or digit, or if it looks like a version.
    """
    if not isinstance(name, str) or not _PIN_NAME.match(name):
        raise SettingsError(
            f"pin name {str(name)[:80]!r} is not valid: use 1 to 200 characters without white "
            "space and '!', and begin with a letter or digit"
        )
    if name == NEWEST or _VERSION.match(name):
        raise SettingsError(f"pin name {name[:80]!r} would be taken for a version: use another")
    return name


class Pinning:
    """What keeps versions of one namespace, and lets them go.

    Args:
        store: Where.
        keys: Of which namespace.
        records: Opens its records.
        timeout_s: Most seconds for each call of the store.
        ttl_s: Seconds after which what is unpinned expires, unless a learner looks after it.
    """

    def __init__(
        self, store: Store, keys: Keys, records: Records, *, timeout_s: float, ttl_s: float
    ) -> None:
        self._store = store
        self._keys = keys
        self._records = records
        self._timeout_s = timeout_s
        self._ttl_s = ttl_s

    def pin(self, name: str, entry: Entry, manifest: Manifest) -> None:
        """Names a version. A name that is taken is given anew.

        Args:
            name: A valid one.
            entry: The version's record.
            manifest: What is in it.

        Raises:
            BlobMissingError: If part of the version is gone. The name is what it was.
            StoreError: If the store fails.
        """
        version, earlier = entry.version, self._pins().get(name)
        self._store.keep_record(self._keys, version, entry.manifest, timeout=self._timeout_s)
        self._store.set_pin(self._keys, name, version, timeout=self._timeout_s)
        try:
            self._let_learner_finish(version)
            missing = self._keep_blobs(manifest)
            if missing:
                raise BlobMissingError(
                    f"version {version} of namespace {self._keys.namespace!r} can not be pinned: "
                    f"{len(missing)} of its {len(manifest.digests())} blobs are gone (dropped, "
                    "expired or evicted)"
                )
        except BaseException:
            self._undo(name, version, earlier)
            raise
        if earlier is not None:
            self._settle(earlier)

    def unpin(self, name: str, version: Version) -> None:
        """Takes a name away from the version that has it.

        Raises:
            StoreError: If the store fails.
        """
        self._store.remove_pin(self._keys, name, timeout=self._timeout_s)
        self._settle(version)

    def _pins(self) -> dict[str, Version]:
        return self._store.pins(self._keys, timeout=self._timeout_s)

    def _let_learner_finish(self, version: Version) -> None:
        """Waits while a learner, which may not have seen the pin, is about to drop the version."""
        deadline = time.monotonic() + NOTICE_S + self._timeout_s
        while version in self._store.notice(self._keys, timeout=self._timeout_s):
            if time.monotonic() > deadline:
                raise StoreTimeoutError(
                    f"{self._store.describe()}: a learner goes on dropping version {version}"
                )
            time.sleep(_LOOK_EVERY_S)

    def _keep_blobs(self, manifest: Manifest) -> set[str]:
        """Has a version's blobs never expire; returns those that are missing."""
        return self._store.set_expiry(
            self._keys, list(manifest.digests()), ttl_s=None, timeout=self._timeout_s
        )

    def _undo(self, name: str, version: Version, earlier: Version | None) -> None:
        if earlier is None:
            self._store.remove_pin(self._keys, name, timeout=self._timeout_s)
        else:
            self._store.set_pin(self._keys, name, earlier, timeout=self._timeout_s)
            self._settle(earlier, kept=False)
        self._settle(version)

    def _settle(self, version: Version, *, kept: bool = True) -> None:
        """Has a version kept, or go its way, as long as it has names or has none.

        Others may pin and unpin at the same time. Whoever acts last looks once more.
        """
        record: bytes | None = None
        others: set[Version] = set()
        while True:
            pinned = set(self._pins().values())
            if kept == (version in pinned) and (kept or pinned <= others):
                return
            kept = version in pinned
            others = pinned - {version}
            wanted = sorted({version, *others})
            records = self._store.find(self._keys, wanted, timeout=self._timeout_s)
            record = records.pop(version, record)
            if not kept:
                self._store.forget_record(self._keys, version, timeout=self._timeout_s)
            if record is None:
                continue
            if kept:
                self._store.keep_record(self._keys, version, record, timeout=self._timeout_s)
            own = self._digests([Entry(version, record)])
            used = self._digests(Entry(v, r) for v, r in records.items())
            for last in (True, False):
                digests = [digest for digest in own if (kept or digest in used) == last]
                self._store.set_expiry(
                    self._keys,
                    digests,
                    ttl_s=None if last else self._ttl_s,
                    timeout=self._timeout_s,
                )

    def _digests(self, entries: Iterable[Entry]) -> Mapping[str, None]:
        found: dict[str, None] = {}
        for entry in entries:
            try:
                found |= dict.fromkeys(self._records.open(entry).digests())
            except CodecError:
                pass  # What it names can not be told, so nothing of it is kept or let go.
        return found
