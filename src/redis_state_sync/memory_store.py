"""A store within one process: for unit tests, examples, and training without remote EnvRunners."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from redis_state_sync.errors import NotNewerError, StoreUnavailableError
from redis_state_sync.keys import RESEND, Keys
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
            self._touch(keys.pins, ttl_s)
            self._touch(keys.readers, ttl_s)

    def refresh(
        self, keys: Keys, digests: Sequence[str], *, ttl_s: float, timeout: float
    ) -> set[str]:
        """Refreshes expiries; returns the digests to send again."""
        with self._lock:
            for key in (keys.versions, keys.pins):
                self._touch(key, ttl_s)
            missing = {d for d in digests if not self._touch(keys.blob(d), ttl_s)}
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

    def drop(
        self, keys: Keys, versions: Sequence[Version], digests: Sequence[str], *, timeout: float
    ) -> None:
        """Forgets versions and blobs."""
        with self._lock:
            stream: dict[Version, bytes | None] = self._get(keys.versions) or {}
            for version in stream.keys() & set(versions):
                stream[version] = None  # As in Redis, its number does not become free again.
            for digest in digests:
                self._values.pop(keys.blob(digest), None)
                self._expiry.pop(keys.blob(digest), None)

    def note_reader(
        self, keys: Keys, reader: str, note: str, *, ttl_s: float, timeout: float
    ) -> None:
        """Records what a reader has."""
        with self._lock:
            notes = self._get(keys.readers) or {}
            self._set(keys.readers, {**notes, reader: note}, ttl_s)

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

    def _set(self, key: str, value: Any, ttl_s: float) -> None:
        self._values[key] = value
        self._expiry[key] = self._clock() + ttl_s

    def _touch(self, key: str, ttl_s: float) -> bool:
        if self._get(key) is None:
            return False
        self._expiry[key] = self._clock() + ttl_s
        return True
