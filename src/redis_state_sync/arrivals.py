"""What comes for one reader: asks for the newest version, fetches it now or ahead of its use."""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Callable, Mapping

from redis_state_sync.decisions import Cooldown
from redis_state_sync.errors import (
    BlobMissingError,
    CodecError,
    IntegrityError,
    SettingsError,
    StoreBehindError,
    StoreError,
    StorePermissionError,
)
from redis_state_sync.events import Fetched
from redis_state_sync.fetcher import Fetcher
from redis_state_sync.manifest import Component, Manifest
from redis_state_sync.poller import Poller
from redis_state_sync.reader_notes import note_of
from redis_state_sync.reports import Reports
from redis_state_sync.snapshot import Snapshot
from redis_state_sync.store import Store
from redis_state_sync.version import Version

# How often a superseded version is given up for the newest one within one attempt.
_ATTEMPTS = 3
_CALM = Cooldown()
# Of a background thread's time while nobody took what it fetched last.
_SHARE_OF_UNUSED_FETCHES = 0.1


class Arrivals:
    """Polls and fetches. Failures are counted and warned about once; the store then has a rest.

    All calls are made with the reader's lock.

    Args:
        store: Where the states are.
        poller: Asks for versions.
        fetcher: Fetches them.
        reports: Hears what happens.
        name: What to call the reader in `status`.
        ttl_s: Seconds after which the note about this reader expires.
        poll_timeout_s: Most seconds that one poll may take.
        first_timeout_s: The same for the very first one.
        transfer_timeout_s: Most seconds that one fetch may take.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        store: Store,
        poller: Poller,
        fetcher: Fetcher,
        reports: Reports,
        *,
        name: str,
        ttl_s: float,
        poll_timeout_s: float,
        first_timeout_s: float,
        transfer_timeout_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self.poller = poller
        self._fetcher = fetcher
        self._reports = reports
        self._name = name
        self._ttl_s = ttl_s
        self._poll_timeout_s = poll_timeout_s
        self._first_timeout_s = max(first_timeout_s, poll_timeout_s)
        self._transfer_timeout_s = transfer_timeout_s
        self._clock = clock
        self.held: Version | None = None
        """What the reader acts with."""
        self.components: Mapping[str, Component] = {}
        """Those of them that the reader is known to have."""
        self.ahead: Snapshot | None = None
        """A newer version than that, fetched and not used yet."""
        self.announced: Version | None = None
        """The newest version that polls have shown."""
        self.cooldown = _CALM
        self._first_poll = True
        self._may_note = True
        self._fetched: Version | None = None
        self._no_fetch_before = 0.0

    def unchanged(self) -> bool:
        """Whether it is known without asking that there is nothing newer than what is held."""
        return self.ahead is None and self.poller.unchanged()

    def newest(self, *, acting: bool = False) -> Snapshot | None:
        """The newest version, if it is newer than the held one; fetches it unless that was done.

        While the store fails, this is what was fetched before.

        Args:
            acting: Whether the reader is between two of its steps: what was asked in vain is
                reported later.
        """
        if not self.cooldown.ready(self._clock()):
            return self.take_ahead()
        operation = "poll"
        try:
            for attempts_left in reversed(range(_ATTEMPTS)):
                operation = "poll"
                choice = self.ask(self._next_timeout(), acting=acting)
                operation = "fetch"
                ahead = self.take_ahead()
                if choice is None:
                    self.cooldown = _CALM
                    return ahead  # Newer than the held one, even if the store has lost it.
                version, manifest = choice
                if ahead is not None and ahead.version >= version:
                    self.cooldown = _CALM
                    return ahead  # Greater: a store that lost it has an older one again.
                self.ahead = ahead  # In case that this one can not be fetched.
                try:
                    snapshot = self.fetch(version, manifest, self._transfer_timeout_s)
                except BlobMissingError:
                    if attempts_left:
                        continue  # Superseded while we read: the newest is complete.
                    raise
                self.ahead, self.cooldown = None, _CALM
                return snapshot
        except (StoreError, CodecError, SettingsError) as error:
            # SettingsError: a password file that is missing while it is being rotated.
            self._reports.failed(operation, error, self.held)
            if isinstance(error, (BlobMissingError, IntegrityError)) and error.digest:
                self._ask_for(error.digest)
            self.cooldown = self.cooldown.failed(self._clock(), random.random())
            return self.take_ahead()
        raise AssertionError("the last attempt returns or raises")

    def look_ahead(self) -> bool:
        """Fetches the newest version in the background, if it is newer, and decodes its weights.

        Returns:
            Whether something was fetched.
        """
        if self.ahead is not None and self._clock() < self._no_fetch_before:
            return False
        before = self.ahead
        if before is None and self.poller.unchanged():
            self._reports.unchanged(acting=True)
            return False
        started = self._clock()
        snapshot = self.newest(acting=True)
        if snapshot is None:
            return False
        if snapshot is not before:
            snapshot.decode_ahead(self.changed(snapshot.manifest))
            # Whoever acts for long must not have everything fetched that comes meanwhile.
            spent = self._clock() - started
            self._no_fetch_before = self._clock() + spent / _SHARE_OF_UNUSED_FETCHES
        self.ahead = snapshot
        return snapshot is not before

    def take_ahead(self) -> Snapshot | None:
        """What was fetched ahead, if anything. Nobody else gets it."""
        snapshot, self.ahead = self.ahead, None
        return snapshot

    def applied(self, version: Version, components: Mapping[str, Component]) -> None:
        """The reader has this version now, and of it these components."""
        self.held = version
        self.components = components
        if self.ahead is not None and self.ahead.version <= version:
            self.ahead = None

    def forget(self) -> None:
        """The reader does not have any more what it was known to have."""
        if self.held is not None:
            self.poller.reopen(self.held)
        self.held, self.components = None, {}

    def ask(self, timeout: float, *, acting: bool = False) -> tuple[Version, Manifest] | None:
        """Asks once whether there is a version newer than the held one.

        Raises:
            StoreError: If the store does not answer within `timeout` seconds.
        """
        started = self._clock()
        choice = self.poller.ask(timeout)
        self._reports.polled(choice.version, self._clock() - started, acting=acting)
        if choice.broken:
            self._reports.failed("poll", choice.broken, self.held)
        if choice.behind:
            lost = f"{self.where()} lost versions that were there before"
            self._reports.failed("poll", StoreBehindError(lost), self.held)
        if choice.foreign:
            self._reports.warn(
                "foreign",
                "%s holds states of another learner; this reader follows %r only",
                self.where(),
                self.poller.writer,
            )
        if choice.version is None or choice.manifest is None:
            return None
        self.announced = choice.version
        return choice.version, choice.manifest

    def fetch(self, version: Version, manifest: Manifest, timeout: float) -> Snapshot:
        """Fetches a version whole.

        Raises:
            StoreError: If the store fails or a blob is missing.
            CodecError: If what it holds is damaged.
        """
        started = self._clock()
        blobs, size = self._fetcher.fetch(version, manifest, timeout=timeout)
        seconds = self._clock() - started
        self._reports.tell(Fetched(version, size, self._skipped(version), seconds))
        self._fetched = version
        note = note_of(version, time.time_ns() // 1_000_000)
        keys = self.poller.keys
        self._tell(functools.partial(self._store.note_reader, keys, self._name, note))
        return Snapshot(version, manifest, blobs, self.changed(manifest))

    def where(self) -> str:
        """The namespace and its store, for messages."""
        return f"namespace {self.poller.keys.namespace!r} at {self._store.describe()}"

    def _next_timeout(self) -> float:
        timeout = self._first_timeout_s if self._first_poll else self._poll_timeout_s
        self._first_poll = False
        return timeout

    def changed(self, manifest: Manifest) -> frozenset[str]:
        """Names of a version's components that the reader is not known to have."""
        return frozenset(n for n, c in manifest.components.items() if self.components.get(n) != c)

    def _skipped(self, version: Version) -> int:
        known = [v for v in (self.held, self._fetched) if v is not None]
        last = max(known, default=None)
        if last is None or last.generation != version.generation or last >= version:
            return 0
        return version.number - last.number - 1

    def _ask_for(self, digest: str) -> None:
        """The learner would take a blob that is there for a good one."""
        self._tell(functools.partial(self._store.ask_for_blob, self.poller.keys, digest))

    def _tell(self, call: Callable[..., None]) -> None:
        if not self._may_note:
            return
        try:
            call(ttl_s=self._ttl_s, timeout=self._poll_timeout_s)
        except StorePermissionError:
            self._may_note = False  # A reader may be allowed to read only; `status` misses it.
        except StoreError as error:
            self._reports.failed("note", error, self.held)
