"""A store within one process: for unit tests, examples, and training without remote EnvRunners."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from redis_state_sync.errors import NotNewerError, StoreUnavailableError
from redis_state_sync.keys import RESEND, Keys, namespaces_of
from redis_state_sync.reader_notes import outdated
from redis_state_sync.store import LARGEST_FETCH, Entry
from redis_state_sync.version import Version


class MemoryStore:
    """Behaves as `RedisStore` does, in this process's memory.

    Args:
        name: Shown by `describe`.
        clock: Seconds since 1970; replaceable in tests.
    """

    def __init__(self, name: str = "default", clock: Callable[[], float] = time.time) -> None:
        self._name = name
        self._clock = clock
        self._own_lock = threading.Lock()
        self._pid = os.getpid()
        self._values: dict[str, Any] = {}
        self._expiry: dict[str, float] = {}

    def describe(self) -> str:
        """Where the data is."""
        return f"memory://{self._name}"

    def server_facts(self, *, timeout: float) -> str:
        """What kind of store this is."""
        return "memory of one process"

    def namespaces(self, *, timeout: float) -> list[str]:
        """The namespaces that hold something, sorted."""
        with self._lock:
            self._forget_expired()
            return namespaces_of(self._values)

    def time_ms(self, *, timeout: float) -> int:
        """The clock in ms since 1970."""
        return int(self._clock() * 1000)

    in_process = True

    def mark(self) -> None:
        """None: asking costs nothing here."""

    def newest(
        self,
        keys: Keys,
        *,
        after: Version | None = None,
        count: int = 1,
        timeout: float,
        tracked: bool = False,
    ) -> list[Entry]:
        """At most `count` entries, newest first, strictly newer than `after`."""
        with self._lock:
            stream: dict[Version, bytes | None] = self._get(keys.versions) or {}
            newer = [
                Entry(version, manifest)
                for version, manifest in sorted(stream.items(), reverse=True)
                if manifest is not None and (after is None or version > after)
            ]
            return newer[:count]

    def append(
        self, keys: Keys, version: Version, manifest: bytes, *, ttl_s: float, timeout: float
    ) -> None:
        """Announces a version; raises `NotNewerError` if it is not greater than the newest."""
        with self._lock:
            stream: dict[Version, bytes | None] = self._get(keys.versions) or {}
            # As in Redis, 0-0 can not be an id.
            if version <= max(stream, default=Version(0, 0)):
                raise NotNewerError(
                    f"{self.describe()}: version {version} is not greater than the newest one"
                )
            self._forget_expired()
            kept = {v: m for v, m in stream.items() if m is not None}
            self._set(keys.versions, {**kept, version: bytes(manifest)}, ttl_s)
            self._touch(keys.readers, ttl_s)

    def find(
        self, keys: Keys, versions: Sequence[Version], *, timeout: float
    ) -> dict[Version, bytes]:
        """The records of these versions, announced or pinned, as far as they are there."""
        with self._lock:
            stream: dict[Version, bytes | None] = self._get(keys.versions) or {}
            announced = {v: record for v, record in stream.items() if record is not None}
            there: dict[Version, bytes] = {**(self._get(keys.pinned) or {}), **announced}
            return {version: there[version] for version in versions if version in there}

    def refresh(
        self,
        keys: Keys,
        digests: Sequence[str],
        *,
        ttl_s: float,
        timeout: float,
        pinned: Collection[str] = (),
    ) -> set[str]:
        """Refreshes expiries; returns the digests to send again."""
        with self._lock:
            self._touch(keys.versions, ttl_s)
            for digest in digests:
                if digest not in pinned:
                    self._touch(keys.blob(digest), ttl_s)
            missing = {d for d in digests if self._get(keys.blob(d)) is None}
            asked_for = (self._get(keys.readers) or {}).get(RESEND)
            return missing | ({asked_for} if asked_for else set())

    def put_blobs(
        self, keys: Keys, blobs: Mapping[str, Any], *, ttl_s: float, timeout: float
    ) -> None:
        """Stores blobs."""
        with self._lock:
            for digest, data in blobs.items():
                self._set(keys.blob(digest), bytes(data), ttl_s)
            (self._get(keys.readers) or {}).pop(RESEND, None)

    def ask_for_blob(self, keys: Keys, digest: str, *, ttl_s: float, timeout: float) -> None:
        """Asks the learner to send a blob again."""
        self.note_reader(keys, RESEND, digest, ttl_s=ttl_s, timeout=timeout)

    def get_blobs(
        self,
        keys: Keys,
        digests: Sequence[str],
        *,
        timeout: float,
        limit: int = LARGEST_FETCH,
        into: Sequence[memoryview] = (),
        arrived: Callable[[Any], None] | None = None,
    ) -> list[bytes | memoryview | None]:
        """The blobs in the order asked for; None for one that is gone. They take no memory."""
        with self._lock:
            return [self._get(keys.blob(digest)) for digest in digests]

    def pins(self, keys: Keys, *, timeout: float) -> dict[str, Version]:
        """Pin name -> pinned version."""
        with self._lock:
            return dict(self._get(keys.pins) or {})

    def clear(self, keys: Keys, *, timeout: float) -> int:
        """Removes all that the namespace holds."""
        with self._lock:
            self._forget_expired()
            gone = keys.owned(self._values)
            for key in gone:
                self._values.pop(key)
                self._expiry.pop(key, None)
            return len(gone)

    def set_pin(self, keys: Keys, name: str, version: Version, *, timeout: float) -> None:
        """Names a version."""
        with self._lock:
            self._set(keys.pins, {**(self._get(keys.pins) or {}), name: version}, None)

    def remove_pin(self, keys: Keys, name: str, *, timeout: float) -> None:
        """Forgets a name."""
        self._remove(keys.pins, name)

    def keep_record(self, keys: Keys, version: Version, record: bytes, *, timeout: float) -> None:
        """Keeps the record of a pinned version."""
        with self._lock:
            records = self._get(keys.pinned) or {}
            self._set(keys.pinned, {**records, version: bytes(record)}, None)

    def forget_record(self, keys: Keys, version: Version, *, timeout: float) -> None:
        """Forgets what `keep_record` kept."""
        self._remove(keys.pinned, version)

    def set_expiry(
        self, keys: Keys, digests: Sequence[str], *, ttl_s: float | None, timeout: float
    ) -> set[str]:
        """Has blobs expire after this time, or (None) never; returns the missing ones."""
        with self._lock:
            return {digest for digest in digests if not self._touch(keys.blob(digest), ttl_s)}

    def give_notice(
        self, keys: Keys, versions: Sequence[Version], *, ttl_s: float, timeout: float
    ) -> None:
        """Says which versions are about to be dropped."""
        with self._lock:
            self._set(keys.dropping, set(versions), ttl_s)

    def notice(self, keys: Keys, *, timeout: float) -> set[Version]:
        """The versions that are about to be dropped."""
        with self._lock:
            return set(self._get(keys.dropping) or ())

    def expires_in(self, keys: Keys, *, timeout: float) -> float | None:
        """Seconds until the versions expire."""
        with self._lock:
            if self._get(keys.versions) is None or keys.versions not in self._expiry:
                return None
            return self._expiry[keys.versions] - self._clock()

    def drop(
        self, keys: Keys, versions: Sequence[Version], digests: Sequence[str], *, timeout: float
    ) -> None:
        """Forgets versions and blobs."""
        with self._lock:
            stream: dict[Version, bytes | None] = self._get(keys.versions) or {}
            for version in stream.keys() & set(versions):
                stream[version] = None  # As in Redis, its number does not become free again.
            gone = [keys.blob(digest) for digest in digests]
            for key in [*gone, keys.dropping] if versions else gone:
                self._values.pop(key, None)
                self._expiry.pop(key, None)

    def note_reader(
        self, keys: Keys, reader: str, note: str, *, ttl_s: float, timeout: float
    ) -> None:
        """Records what a reader has."""
        with self._lock:
            notes = self._get(keys.readers) or {}
            self._set(keys.readers, {**notes, reader: note}, ttl_s)

    def readers(self, keys: Keys, *, timeout: float) -> dict[str, str]:
        """Reader -> its note."""
        with self._lock:
            notes = self._get(keys.readers) or {}
            return {name: note for name, note in notes.items() if name != RESEND}

    def forget_readers(self, keys: Keys, *, now_ms: int, ttl_s: float, timeout: float) -> None:
        """Drops the notes of readers that were not heard of for `ttl_s`."""
        with self._lock:
            notes: dict[str, str] = self._get(keys.readers) or {}
            for reader in outdated(notes, now_ms, ttl_s):
                del notes[reader]
            if not notes:  # As in Redis.
                self._values.pop(keys.readers, None)
                self._expiry.pop(keys.readers, None)

    def close(self) -> None:
        """Does nothing: the data stays until the process ends."""

    @property
    def _lock(self) -> AbstractContextManager[bool]:
        if self._pid != os.getpid():
            # A copy that no learner ever changes, perhaps with a lock that nobody ever releases.
            raise StoreUnavailableError(
                f"{self.describe()} lives in one process, and this one was forked from it: use a "
                "server, as in redis://, or EmbeddedServer"
            )
        return self._own_lock

    def _get(self, key: str) -> Any:
        if self._expiry.get(key, float("inf")) <= self._clock():
            self._values.pop(key, None)
            self._expiry.pop(key, None)
        return self._values.get(key)

    def _forget_expired(self) -> None:
        """Also what nobody asks for any more, such as the namespaces of earlier learners."""
        for key in list(self._values):
            self._get(key)

    def _remove(self, key: str, field: Any) -> None:
        with self._lock:
            values = self._get(key) or {}
            values.pop(field, None)
            if not values:  # As in Redis.
                self._values.pop(key, None)

    def _set(self, key: str, value: Any, ttl_s: float | None) -> None:
        self._values[key] = value
        self._expire(key, ttl_s)

    def _touch(self, key: str, ttl_s: float | None) -> bool:
        if self._get(key) is None:
            return False
        self._expire(key, ttl_s)
        return True

    def _expire(self, key: str, ttl_s: float | None) -> None:
        if ttl_s is None:
            self._expiry.pop(key, None)
        else:
            self._expiry[key] = self._clock() + ttl_s
