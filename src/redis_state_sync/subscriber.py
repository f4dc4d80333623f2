"""The reading side: polls the version, fetches only when it grew, applies a version whole."""

from __future__ import annotations

import functools
import logging
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

from redis_state_sync.decisions import Cooldown
from redis_state_sync.errors import (
    ApplyError,
    BlobMissingError,
    CodecError,
    IntegrityError,
    RedisStateSyncError,
    SettingsError,
    StaleStateError,
    StoreBehindError,
    StoreError,
    StorePermissionError,
)
from redis_state_sync.events import Applied, Failed, Fetched, Observer, Polled, checked, notify
from redis_state_sync.fetcher import Fetcher
from redis_state_sync.keyring import Keyring, find_keyring
from redis_state_sync.keys import Keys
from redis_state_sync.manifest import Component, Manifest
from redis_state_sync.node_cache import open_node_cache
from redis_state_sync.poller import Poller
from redis_state_sync.reader_notes import note_of
from redis_state_sync.records import Records
from redis_state_sync.settings import MAX_STATE_BYTES, check_node_cache_bytes, check_seconds
from redis_state_sync.snapshot import Snapshot
from redis_state_sync.store import Store, check_store
from redis_state_sync.version import Version

logger = logging.getLogger("redis_state_sync")

# How often a superseded version is given up for the newest one within one refresh.
_ATTEMPTS = 3
_CALM = Cooldown()
_PROGRESS = {
    *("_own_lock", "_refreshing", "_held", "_poller"),
    *("_applied", "_fetcher", "_cooldown", "_warned"),
}


class StateSubscriber:
    """Follows a namespace. `refresh` is all that a reader calls in its loop::

        subscriber = StateSubscriber(open_store("redis://localhost"), "my-run")
        while True:
            subscriber.refresh(lambda snapshot: module.load(snapshot["rl_module/p0"]))
            act()

    Safe to call from several threads: applying is serialised and never goes back.

    Args:
        store: Where the states are.
        namespace: Which shared state.
        writer: Take states of this writer id only; None: of whoever publishes.
        name: What to call this reader in `status`.
        poll_timeout_s: Most seconds that one poll may cost.
        first_timeout_s: The same for the very first poll: acting with no state at all is worse
            than waiting a little.
        transfer_timeout_s: Most seconds that one fetch may take.
        ttl_s: Seconds after which the note about this reader expires.
        max_staleness_s: See `Settings`.
        keyring: Takes signed states only. Default: the environment's, if it has one.
        max_state_bytes: See `Settings`.
        node_cache_bytes: See `Settings`.
        stall_timeout_s: See `Settings`.
        tracking: Rely on the server's word that nothing changed, where it gives one (RESP3:
            ``protocol=3`` in the URL; no cluster). `refresh` is then a look at the local socket,
            and sees a version some time after it was stored: mostly well under a millisecond, at
            most a second. `poll` and `fetch` ask in any case.
        observers: Told of every event.
        clock: Monotonic seconds; replaceable in tests.

    Raises:
        SettingsError: If an argument is wrong.
    """

    def __init__(
        self,
        store: Store,
        namespace: str,
        *,
        writer: str | None = None,
        name: str | None = None,
        poll_timeout_s: float = 0.05,
        first_timeout_s: float = 2.0,
        transfer_timeout_s: float = 60.0,
        ttl_s: float = 86_400.0,
        max_staleness_s: float | None = None,
        keyring: Keyring | None = None,
        max_state_bytes: int = MAX_STATE_BYTES,
        node_cache_bytes: int | None = None,
        stall_timeout_s: float = 0.5,
        tracking: bool = False,
        observers: Iterable[Observer] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_store(store)
        for setting, seconds in (
            ("poll_timeout_s", poll_timeout_s),
            ("first_timeout_s", first_timeout_s),
            ("transfer_timeout_s", transfer_timeout_s),
            ("stall_timeout_s", stall_timeout_s),
            ("ttl_s", ttl_s),
            ("max_staleness_s", 1.0 if max_staleness_s is None else max_staleness_s),
        ):
            check_seconds(setting, seconds)
        if writer is not None and not isinstance(writer, str):
            raise SettingsError(f"writer must be a str or None, got {writer!r}")
        if name is not None and (not isinstance(name, str) or name.startswith("!")):
            raise SettingsError(f"name must be a str that does not begin with '!', got {name!r}")
        self.store = store
        self.keys = Keys(namespace)
        self.writer = writer
        self._name = name
        self._poll_timeout_s = poll_timeout_s
        self._first_timeout_s = max(first_timeout_s, poll_timeout_s)
        self._transfer_timeout_s = transfer_timeout_s
        self._ttl_s = ttl_s
        self._max_staleness_s = max_staleness_s
        self._records = Records(self.keys, keyring or find_keyring())
        self._max_state_bytes = max_state_bytes
        check_node_cache_bytes(node_cache_bytes)
        self._node_cache_bytes = 0 if store.in_process else node_cache_bytes
        self._stall_timeout_s = stall_timeout_s
        self._tracking = tracking
        self._observers = checked(observers)
        self._clock = clock
        self._init_state()

    def _init_state(self) -> None:
        self._pid = os.getpid()
        self.name = self._name or f"{socket.gethostname()}:{self._pid}"
        self._own_lock = threading.RLock()
        self._refreshing = False
        self._held: Version | None = None
        self._poller = Poller(
            self.store,
            self.keys,
            self._records,
            self.writer,
            self._clock,
            tracked=self._tracking,
        )
        self._applied: dict[str, Component] = {}
        self._fetcher = Fetcher(
            self.store,
            self.keys,
            self._max_state_bytes,
            functools.partial(open_node_cache, limit_bytes=self._node_cache_bytes),
            stall_timeout_s=self._stall_timeout_s,
        )
        self._cooldown = Cooldown()
        self._fresh_since = self._clock()
        self._first_poll = True
        self._may_note = True
        self._warned: set[str] = set()

    def __getstate__(self) -> dict[str, Any]:
        # Travels with its settings only: in another process it begins anew.
        return {name: value for name, value in self.__dict__.items() if name not in _PROGRESS}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._init_state()

    @property
    def _lock(self) -> AbstractContextManager[bool]:
        if self._pid != os.getpid():
            # A fork may have copied the lock while another thread held it, and the receiver while
            # it was being changed: the child begins anew, but for going back.
            held = self._held
            self._init_state()
            if held is not None:
                self._poller.reopen(held)
        return self._own_lock

    @property
    def held(self) -> Version | None:
        """The version applied last; None before the first one and after `forget`."""
        return self._held

    @property
    def polled_in_vain(self) -> bool:
        """Whether the store was asked, and has never had anything in this namespace."""
        poller = self._poller
        return poller.answers > 0 and poller.floor is None and self._held is None

    def forget(self) -> None:
        """The receiver's state was changed from outside: fetch and apply the newest again.

        The newest may be the one that was held, and never an older one.
        """
        with self._lock:
            if self._held is not None:
                self._poller.reopen(self._held)
            self._held = None
            self._applied = {}

    def adopt(self, version: Version) -> None:
        """The receiver got this version by another way; only newer ones are fetched from now on."""
        with self._lock:
            if self._held is None or version > self._held:
                self._held = version
                self._fresh_since = self._clock()
            self._poller.deal_with(version)
            self._applied = {}

    def refresh(self, apply: Callable[[Snapshot], None]) -> Snapshot | None:
        """Applies the newest version if it is newer than the held one.

        Costs at most `poll_timeout_s` when there is nothing new or the store is slow or gone; a
        store that fails is left alone for a growing while. Failures are counted and warned about
        once, and leave the receiver as it is.

        Args:
            apply: Puts a snapshot into effect, whole or not at all. It raises `ApplyError` to
                reject one; its other exceptions reach the caller. In both cases this version is
                not tried again, the next one is. While it runs, further calls of `refresh` by the
                same thread (from within it, or from a signal handler) do nothing.

        Returns:
            The snapshot that was applied, or None.

        Raises:
            StaleStateError: If `max_staleness_s` is set and exceeded.
        """
        with self._lock:
            if self._refreshing:
                return None  # Else an inner call's newer version would be overwritten by ours.
            if self._unchanged():
                return None
            self._refreshing = True
            try:
                snapshot = self._next() if self._cooldown.ready(self._clock()) else None
                if snapshot is not None and not self._apply(snapshot, apply):
                    snapshot = None
            finally:
                self._refreshing = False
            self._check_staleness()
            return snapshot

    def poll(self, *, timeout: float | None = None) -> Version | None:
        """Asks once whether there is a version newer than the held one.

        Raises:
            StoreError: If the store does not answer.
        """
        with self._lock:
            choice = self._ask(self._poll_timeout_s if timeout is None else timeout)
            return choice[0] if choice else None

    def fetch(self, *, timeout: float | None = None) -> Snapshot | None:
        """Fetches the newest version if it is newer than the held one, without applying it.

        Raises:
            StoreError: If the store fails or a blob is missing.
            CodecError: If what it holds is damaged.
        """
        with self._lock:
            budget = self._transfer_timeout_s if timeout is None else timeout
            choice = self._ask(budget)
            return self._fetch(*choice, budget) if choice else None

    def wait_for(
        self, apply: Callable[[Snapshot], None], *, version: Version | None = None, timeout: float
    ) -> Version:
        """Refreshes until something (or at least `version`) is held.

        Raises:
            StaleStateError: If that takes longer than `timeout` seconds.
        """
        deadline = self._clock() + timeout
        while True:
            self.refresh(apply)
            held = self._held
            if held is not None and (version is None or held >= version):
                return held
            if self._clock() >= deadline:
                raise StaleStateError(
                    f"namespace {self.keys.namespace!r} at {self.store.describe()} offered "
                    f"{'nothing' if version is None else f'no version {version}'} within "
                    f"{timeout:g} s; held is {held}"
                )
            time.sleep(0.02)

    def close(self) -> None:
        """Closes the store's connection. The subscriber can be used again."""
        self.store.close()

    def _unchanged(self) -> bool:
        """Whether it is known without asking that there is nothing newer."""
        if not self._poller.unchanged():
            return False
        if self._observers:
            notify(self._observers, Polled(None, 0.0))
        self._check_staleness()
        return True

    def _next(self) -> Snapshot | None:
        operation = "poll"
        try:
            for attempts_left in reversed(range(_ATTEMPTS)):
                operation = "poll"
                timeout = self._first_timeout_s if self._first_poll else self._poll_timeout_s
                self._first_poll = False
                choice = self._ask(timeout)
                operation = "fetch"
                if choice is None:
                    break
                try:
                    snapshot = self._fetch(*choice, self._transfer_timeout_s)
                except BlobMissingError:
                    if attempts_left:
                        continue  # Superseded while we read: the newest is complete.
                    raise
                self._cooldown = _CALM
                return snapshot
        except (StoreError, CodecError, SettingsError) as error:
            # SettingsError: a password file that is missing while it is being rotated.
            self._failed(operation, error)
            if isinstance(error, (BlobMissingError, IntegrityError)) and error.digest:
                self._ask_for(error.digest)
            self._cooldown = self._cooldown.failed(self._clock(), random.random())
            return None
        self._cooldown = _CALM
        return None

    def _ask(self, timeout: float) -> tuple[Version, Manifest] | None:
        started = self._clock()
        choice = self._poller.ask(timeout)
        if self._observers:
            notify(self._observers, Polled(choice.version, self._clock() - started))
        if choice.broken:
            self._failed("poll", choice.broken)
        if choice.behind:
            lost = f"{self._where()} lost versions that were there before"
            self._failed("poll", StoreBehindError(lost))
        if choice.foreign:
            self._warn(
                "foreign",
                "%s holds states of another learner; this reader follows %r only",
                self._where(),
                self.writer,
            )
        if choice.version is None or choice.manifest is None:
            return None
        return choice.version, choice.manifest

    def _where(self) -> str:
        return f"namespace {self.keys.namespace!r} at {self.store.describe()}"

    def _fetch(self, version: Version, manifest: Manifest, timeout: float) -> Snapshot:
        started = self._clock()
        blobs, size = self._fetcher.fetch(version, manifest, timeout=timeout)
        seconds = self._clock() - started
        notify(self._observers, Fetched(version, size, self._skipped(version), seconds))
        self._note(version)
        changed = frozenset(n for n, c in manifest.components.items() if self._applied.get(n) != c)
        return Snapshot(version, manifest, blobs, changed)

    def _skipped(self, version: Version) -> int:
        held = self._held
        if held is None or held.generation != version.generation:
            return 0
        return version.number - held.number - 1

    def _apply(self, snapshot: Snapshot, apply: Callable[[Snapshot], None]) -> bool:
        started = self._clock()
        # Whatever happens, this version is dealt with: a rejected one is not fetched again.
        self._poller.deal_with(snapshot.version)
        try:
            apply(snapshot)
        except (ApplyError, CodecError) as error:
            self._failed("apply", error)
            return False
        self._held = snapshot.version
        self._applied = dict(snapshot.manifest.components)
        self._fresh_since = self._clock()
        self._warned.clear()
        notify(self._observers, Applied(snapshot.version, self._clock() - started))
        return True

    def _note(self, version: Version) -> None:
        note = note_of(version, time.time_ns() // 1_000_000)
        self._tell(functools.partial(self.store.note_reader, self.keys, self.name, note))

    def _ask_for(self, digest: str) -> None:
        """The learner would take a blob that is there for a good one."""
        self._tell(functools.partial(self.store.ask_for_blob, self.keys, digest))

    def _tell(self, call: Callable[..., None]) -> None:
        if not self._may_note:
            return
        try:
            call(ttl_s=self._ttl_s, timeout=self._poll_timeout_s)
        except StorePermissionError:
            self._may_note = False  # A reader may be allowed to read only; `status` misses it.
        except StoreError as error:
            self._failed("note", error)

    def _failed(self, operation: str, error: RedisStateSyncError) -> None:
        notify(self._observers, Failed(operation, error.category, str(error)))
        self._warn(
            f"{operation}/{error.category}",
            "%s failed, going on with version %s: %s",
            operation,
            self._held,
            error,
        )

    def _warn(self, kind: str, message: str, *details: Any) -> None:
        """Once, until something is applied again."""
        if kind not in self._warned:
            self._warned.add(kind)
            logger.warning(message, *details)

    def _check_staleness(self) -> None:
        age = self._clock() - self._fresh_since
        if self._max_staleness_s is not None and age > self._max_staleness_s:
            raise StaleStateError(
                f"no new version for {age:.1f} s (max_staleness_s is {self._max_staleness_s:g}): "
                f"namespace {self.keys.namespace!r} at {self.store.describe()}, held is "
                f"{self._held}; is a learner publishing there?"
            )
