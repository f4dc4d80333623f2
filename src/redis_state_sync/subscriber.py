"""The reading side: polls the version, fetches only when it grew, applies a version whole."""

from __future__ import annotations

import functools
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from redis_state_sync.arrivals import Arrivals
from redis_state_sync.components import is_weights
from redis_state_sync.errors import ApplyError, CodecError, SettingsError, StaleStateError
from redis_state_sync.events import Applied, Observer, checked
from redis_state_sync.fetcher import Fetcher
from redis_state_sync.freshness import Freshness, Limits
from redis_state_sync.keyring import Keyring, find_keyring
from redis_state_sync.keys import Keys
from redis_state_sync.node_cache import open_node_cache
from redis_state_sync.poller import Poller
from redis_state_sync.prefetcher import Prefetcher
from redis_state_sync.records import Records
from redis_state_sync.reports import Reports
from redis_state_sync.settings import MAX_STATE_BYTES, check_node_cache_bytes, check_seconds
from redis_state_sync.snapshot import Snapshot
from redis_state_sync.store import Store, check_store
from redis_state_sync.version import Version

logger = logging.getLogger("redis_state_sync")

_Lock = Any  # threading.RLock is no class.
# What does not travel to another process.
_PROGRESS = {
    *("_own_lock", "_refreshing", "_reports", "_arrivals"),
    *("_half_applied", "_prefetcher", "_surprise", "_freshness"),
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
        max_staleness_s: See `Settings`, where ``sample()`` stands for `refresh`.
        max_staleness_versions: See `Settings`.
        on_stale: See `Settings`.
        stale_wait_s: See `Settings`.
        keyring: Takes signed states only. Default: the environment's, if it has one.
        max_state_bytes: See `Settings`.
        node_cache_bytes: See `Settings`.
        stall_timeout_s: See `Settings`.
        tracking: Rely on the server's word that nothing changed, where it gives one (RESP3:
            ``protocol=3`` in the URL; no cluster). `refresh` is then a look at the local socket,
            and sees a version some time after it was stored: mostly well under a millisecond, at
            most a second. `poll` and `fetch` ask in any case.
        prefetch_every_s: Least number of seconds between two polls while `prefetching`. None: 10
            ms, or more where that would take more than a hundredth of a core.
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
        max_staleness_versions: int | None = None,
        on_stale: Literal["raise", "warn", "wait"] = "raise",
        stale_wait_s: float = 60.0,
        keyring: Keyring | None = None,
        max_state_bytes: int = MAX_STATE_BYTES,
        node_cache_bytes: int | None = None,
        stall_timeout_s: float = 0.5,
        tracking: bool = False,
        prefetch_every_s: float | None = None,
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
        ):
            check_seconds(setting, seconds)
        if writer is not None and not isinstance(writer, str):
            raise SettingsError(f"writer must be a str or None, got {writer!r}")
        if name is not None and (not isinstance(name, str) or name.startswith("!")):
            raise SettingsError(f"name must be a str that does not begin with '!', got {name!r}")
        if prefetch_every_s is not None:
            check_seconds("prefetch_every_s", prefetch_every_s)
        self.store = store
        self.keys = Keys(namespace)
        self.writer = writer
        self._name = name
        self._poll_timeout_s = poll_timeout_s
        self._first_timeout_s = first_timeout_s
        self._transfer_timeout_s = transfer_timeout_s
        self._ttl_s = ttl_s
        self._limits = Limits(
            max_staleness_s=max_staleness_s,
            max_staleness_versions=max_staleness_versions,
            on_stale=on_stale,
            stale_wait_s=stale_wait_s,
        )
        self._records = Records(self.keys, keyring or find_keyring())
        self._max_state_bytes = max_state_bytes
        check_node_cache_bytes(node_cache_bytes)
        self._node_cache_bytes = 0 if store.in_process else node_cache_bytes
        self._stall_timeout_s = stall_timeout_s
        self._tracking = tracking
        self._prefetch_every_s = prefetch_every_s
        self._observers = checked(observers)
        self._clock = clock
        self._init_state()

    def _init_state(self) -> None:
        self._pid = os.getpid()
        self.name = self._name or f"{socket.gethostname()}:{self._pid}"
        self._own_lock = threading.RLock()
        self._refreshing = False
        self._reports = Reports(self._observers)
        self._arrivals = self._make_arrivals()
        # Applied in flight: weights, and not yet the rest.
        self._half_applied: Snapshot | None = None
        self._prefetcher = Prefetcher(self._look_ahead, self._prefetch_every_s)
        self._surprise: Exception | None = None
        self._freshness = Freshness(self._limits, self._reports, self._arrivals.where, self._clock)

    def _make_arrivals(self) -> Arrivals:
        poller = Poller(
            self.store,
            self.keys,
            self._records,
            self.writer,
            self._clock,
            tracked=self._tracking,
        )
        fetcher = Fetcher(
            self.store,
            self.keys,
            self._max_state_bytes,
            functools.partial(open_node_cache, limit_bytes=self._node_cache_bytes),
            stall_timeout_s=self._stall_timeout_s,
        )
        return Arrivals(
            self.store,
            poller,
            fetcher,
            self._reports,
            name=self.name,
            ttl_s=self._ttl_s,
            poll_timeout_s=self._poll_timeout_s,
            first_timeout_s=self._first_timeout_s,
            transfer_timeout_s=self._transfer_timeout_s,
            clock=self._clock,
        )

    def __getstate__(self) -> dict[str, Any]:
        # Travels with its settings only: in another process it begins anew.
        return {name: value for name, value in self.__dict__.items() if name not in _PROGRESS}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._init_state()

    @property
    def _lock(self) -> _Lock:
        self._begin_anew_in_a_child()
        return self._own_lock

    def _begin_anew_in_a_child(self) -> None:
        if self._pid != os.getpid():
            # A fork may have copied the lock while another thread held it, and the receiver while
            # it was being changed: the child begins anew, but for going back.
            held = self.held
            self._init_state()
            if held is not None:
                self._arrivals.poller.reopen(held)

    @property
    def held(self) -> Version | None:
        """The version applied last; None before the first one and after `forget`."""
        return self._arrivals.held

    @property
    def polled_in_vain(self) -> bool:
        """Whether the store was asked, and has never had anything in this namespace."""
        poller = self._arrivals.poller
        return poller.answers > 0 and poller.floor is None and self.held is None

    def forget(self) -> None:
        """The receiver's state was changed from outside: fetch and apply the newest again.

        The newest may be the one that was held, and never an older one.
        """
        with self._lock:
            self._arrivals.forget()
            self._half_applied = None

    def adopt(self, version: Version) -> None:
        """The receiver got this version by another way; only newer ones are fetched from now on."""
        with self._lock:
            held = self.held
            if held is None or version > held:
                held = version
                self._freshness.applied()
            self._arrivals.applied(held, {})
            self._arrivals.poller.deal_with(version)
            self._half_applied = None

    def refresh(self, apply: Callable[[Snapshot], None], *, limits: bool = True) -> Snapshot | None:
        """Applies the newest version if it is newer than the held one.

        Costs at most `poll_timeout_s` when there is nothing new or the store is slow or gone; a
        store that fails is left alone for a growing while. Failures are counted and warned about
        once, and leave the receiver as it is.

        Args:
            apply: Puts a snapshot into effect, whole or not at all. It raises `ApplyError` to
                reject one; its other exceptions reach the caller. In both cases this version is
                not tried again, the next one is. While it runs, further calls of `refresh` by the
                same thread (from within it, or from a signal handler) do nothing.
            limits: Whether limits of staleness apply.

        Returns:
            The snapshot that was applied, or None.

        Raises:
            StaleStateError: If the state is staler than the limits allow, and `on_stale` is
                ``"raise"``, or ``"wait"`` and that took too long.
        """
        newest: Snapshot | None = None
        waits_since: float | None = None
        while True:
            with self._lock:
                if self._refreshing:
                    return None  # Else an inner call's newer version would be overwritten by ours.
                snapshot = self._refresh(apply)
                newest = newest if snapshot is None else snapshot
                if not limits:
                    return newest
                pause = self._freshness.pause(self.held, self._arrivals.announced, waits_since)
                if not pause:
                    return newest
                waits_since = self._clock() if waits_since is None else waits_since
            time.sleep(pause)

    def refresh_in_flight(self, apply: Callable[[Snapshot], None]) -> Snapshot | None:
        """Applies the weights of the newest version between two steps of whoever acts with them.

        While `prefetching`, this is the newest version that has been fetched, if there is one: it
        costs next to nothing if there is none. Otherwise the store is asked, as by `refresh`.
        What else a version comprises is applied by the next `refresh`. If another thread is busy
        with this reader, nothing is done.

        Args:
            apply: Puts the weights of a snapshot into effect (components `rl_module/...`), all or
                none. Otherwise as for `refresh`.

        Returns:
            The snapshot whose weights were applied, or None.
        """
        lock = self._lock
        if self._prefetcher.is_on and self._arrivals.ahead is None:
            return None
        if not lock.acquire(blocking=False):
            return None
        try:
            if self._refreshing:
                return None
            self._refreshing = True
            try:
                snapshot = self._in_flight()
                if snapshot is not None and not self._apply(snapshot, apply, in_flight=True):
                    snapshot = None
            finally:
                self._refreshing = False
            return snapshot
        finally:
            lock.release()

    @contextmanager
    def prefetching(self) -> Iterator[None]:
        """Within this block newer versions are fetched and decoded in the background.

        `refresh` and `refresh_in_flight` then only apply them. One fetch is under way at most, and
        one version that was not applied is kept at most. Observers are still told on the thread
        that calls `refresh`; failures count and cool down as they do there::

            while True:
                subscriber.refresh(module.apply)
                with subscriber.prefetching():
                    for _ in range(1000):
                        act()
                        subscriber.refresh_in_flight(module.apply_weights)
        """
        self._begin_anew_in_a_child()
        prefetcher = self._prefetcher
        in_another = prefetcher.is_on
        try:
            prefetcher.turn_on()
        except RuntimeError as error:  # Of threads or memory there is no more; later there may be.
            self._reports.no_thread(error)
        try:
            yield
        finally:
            if not in_another:
                prefetcher.turn_off()

    def poll(self, *, timeout: float | None = None) -> Version | None:
        """Asks once whether there is a version newer than the held one.

        Raises:
            StoreError: If the store does not answer.
        """
        with self._lock:
            choice = self._arrivals.ask(self._poll_timeout_s if timeout is None else timeout)
            return choice[0] if choice else None

    def fetch(self, *, timeout: float | None = None) -> Snapshot | None:
        """Fetches the newest version if it is newer than the held one, without applying it.

        Raises:
            StoreError: If the store fails or a blob is missing.
            CodecError: If what it holds is damaged.
        """
        with self._lock:
            budget = self._transfer_timeout_s if timeout is None else timeout
            choice = self._arrivals.ask(budget)
            return self._arrivals.fetch(*choice, budget) if choice else None

    def wait_for(
        self, apply: Callable[[Snapshot], None], *, version: Version | None = None, timeout: float
    ) -> Version:
        """Refreshes until something (or at least `version`) is held.

        Raises:
            StaleStateError: If that takes longer than `timeout` seconds.
        """
        deadline = self._clock() + timeout
        while True:
            self.refresh(apply, limits=False)
            held = self.held
            if held is not None and (version is None or held >= version):
                return held
            if self._clock() >= deadline:
                raise StaleStateError(
                    f"{self._arrivals.where()} offered "
                    f"{'nothing' if version is None else f'no version {version}'} within "
                    f"{timeout:g} s; held is {held}"
                )
            time.sleep(0.02)

    def close(self) -> None:
        """Ends prefetching and closes the connection. The subscriber can be used again."""
        self._begin_anew_in_a_child()
        self._prefetcher.close()
        self.store.close()

    def _refresh(self, apply: Callable[[Snapshot], None]) -> Snapshot | None:
        self._hear()
        unchanged = self._arrivals.unchanged()
        if unchanged:
            self._reports.unchanged(acting=False)
            if self._half_applied is None:
                return None
        self._refreshing = True
        try:
            newer = None if unchanged else self._arrivals.newest()
            snapshot = self._half_applied if newer is None else newer
            applied = snapshot is not None and self._apply(snapshot, apply)
            return snapshot if applied else None
        finally:
            self._refreshing = False

    def _hear(self) -> None:
        """Catches up with what happened on the prefetching thread, or between steps."""
        self._reports.catch_up()
        surprise, self._surprise = self._surprise, None
        if surprise is not None:
            raise surprise

    def _look_ahead(self) -> bool:
        """On the prefetching thread."""
        with self._lock, self._reports.put_off():
            try:
                return self._arrivals.look_ahead()
            except Exception as error:
                # A defect of ours, or of a store of the user's own: told where it is seen.
                self._surprise = error
                self._prefetcher.turn_off()
                return False

    def _in_flight(self) -> Snapshot | None:
        arrivals = self._arrivals
        if self._prefetcher.is_on:
            return arrivals.take_ahead()
        if arrivals.unchanged():
            self._reports.unchanged(acting=True)
            return None
        return arrivals.newest(acting=True)

    def _apply(
        self, snapshot: Snapshot, apply: Callable[[Snapshot], None], *, in_flight: bool = False
    ) -> bool:
        started = self._clock()
        arrivals = self._arrivals
        # Whatever happens, this version is dealt with: a rejected one is not fetched again.
        arrivals.poller.deal_with(snapshot.version)
        half, self._half_applied = self._half_applied, None
        snapshot.changed = arrivals.changed(snapshot.manifest)
        self._reports.catch_up()  # That it was fetched is told before that it was applied.
        try:
            apply(snapshot)
        except (ApplyError, CodecError) as error:
            if snapshot is not half:
                self._half_applied = half  # The receiver has its weights, and still lacks the rest.
            self._reports.failed("apply", error, self.held)
            return False
        newer = self.held is None or snapshot.version > self.held
        components = dict(snapshot.manifest.components)
        if in_flight:
            self._half_applied = snapshot
            weights = {name: c for name, c in components.items() if is_weights(name)}
            components = {**arrivals.components, **weights}
        arrivals.applied(snapshot.version, components)
        if newer:  # Not the rest of one whose weights were applied before.
            self._freshness.applied()
        self._reports.recovered()
        seconds = self._clock() - started
        self._reports.tell(Applied(snapshot.version, seconds, snapshot.manifest.time_ms))
        return True
