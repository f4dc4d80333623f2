"""The writing side: takes over a namespace, publishes in the background, the latest state wins."""

from __future__ import annotations

import logging
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NoReturn

from redis_state_sync import background
from redis_state_sync.announcer import Announcer
from redis_state_sync.blobs import Blob
from redis_state_sync.components import check_name
from redis_state_sync.decisions import Cooldown
from redis_state_sync.encoder import Encoder
from redis_state_sync.errors import (
    EncodeError,
    RedisStateSyncError,
    SettingsError,
    StalePublisherError,
    StoreError,
)
from redis_state_sync.events import (
    Claimed,
    Dropped,
    Failed,
    Looked,
    Observer,
    Published,
    Recovered,
    checked,
    notify,
)
from redis_state_sync.keyring import Keyring, find_keyring
from redis_state_sync.keys import Keys
from redis_state_sync.latest_wins import LatestWins
from redis_state_sync.manifest import Writer, check_seq_no, check_writer_id
from redis_state_sync.node_cache import open_node_cache
from redis_state_sync.publication import Job, Publication, PublisherStats, fresh
from redis_state_sync.settings import (
    MAX_STATE_BYTES,
    check_history,
    check_node_cache_bytes,
    check_seconds,
)
from redis_state_sync.snapshot import Snapshot
from redis_state_sync.store import Store, check_store
from redis_state_sync.version import Version

logger = logging.getLogger("redis_state_sync")

# Often enough that a store which came back empty is filled within two seconds.
HEARTBEAT_S = 0.5


class StatePublisher:
    """The one learner of a namespace::

        publisher = StatePublisher(open_store("redis://localhost"), "my-run")
        publisher.publish({"rl_module/p0": weights})          # returns at once
        publisher.publish({"rl_module/p0": weights}).wait(5)  # every later poll sees it

    Making one takes the namespace over: from then on every older learner is refused.

    `close` it in the end. If the interpreter exits first, it is closed then. One that is dropped
    ends by itself as soon as nothing waits to be stored.

    Args:
        store: Where to publish.
        namespace: Which shared state.
        writer_id: What readers that follow one learner only compare; default: a unique one.
        history: How many of the newest versions to keep.
        ttl_s: Seconds after which the namespace expires once this process is gone.
        connect_timeout_s: Most seconds for taking over.
        transfer_timeout_s: Most seconds for one attempt to publish.
        max_state_bytes: See `Settings`.
        node_cache_bytes: See `Settings`.
        heartbeat_s: Seconds between looks at the store.
        keyring: Signs what is published. Default: the environment's, if it has one.
        observers: Told of every event, on the publishing thread. They may publish, not wait.

    Raises:
        SettingsError: If an argument is wrong.
        StoreError: If the store can not be reached, or refuses.
    """

    def __init__(
        self,
        store: Store,
        namespace: str,
        *,
        writer_id: str | None = None,
        history: int = 4,
        ttl_s: float = 86_400.0,
        connect_timeout_s: float = 2.0,
        transfer_timeout_s: float = 60.0,
        max_state_bytes: int = MAX_STATE_BYTES,
        node_cache_bytes: int | None = None,
        heartbeat_s: float = HEARTBEAT_S,
        keyring: Keyring | None = None,
        observers: Iterable[Observer] = (),
    ) -> None:
        check_store(store)
        check_history(history)
        check_node_cache_bytes(node_cache_bytes)
        for name, seconds in (
            ("ttl_s", ttl_s),
            ("connect_timeout_s", connect_timeout_s),
            ("transfer_timeout_s", transfer_timeout_s),
            ("heartbeat_s", heartbeat_s),
        ):
            check_seconds(name, seconds)
        check_writer_id(writer_id)
        host, self._pid = socket.gethostname(), os.getpid()
        self.store = store
        self.keys = Keys(namespace)
        self.writer = Writer(writer_id or f"{host}/{self._pid}/{time.time_ns()}", host, self._pid)
        self.stats = PublisherStats()
        self._heartbeat_s = heartbeat_s
        self._max_state_bytes = max_state_bytes
        self._observers = checked(observers)
        # What observers know: they hear of the rest on the publishing thread.
        self._known_generation: int | None = None
        self._known_dropped = 0
        self._number = 0
        self._latest: dict[str, Blob] = {}
        self._weights_seq_no: int | None = None
        self._changed = threading.Condition()
        self._queue = LatestWins(self.stats)
        # Whether dropping old versions failed last time.
        self._untidy = False
        self._cooldown = Cooldown()
        self._refused: StalePublisherError | None = None
        self._closed = False
        self._next_beat = time.monotonic() + heartbeat_s
        try:
            self._announcer = Announcer(
                store,
                self.keys,
                self.writer,
                history=history,
                ttl_s=ttl_s,
                probe_timeout_s=connect_timeout_s,
                transfer_timeout_s=transfer_timeout_s,
                keyring=keyring or find_keyring(),
            )
            # Here, not when it is first needed: what is opened first is left last when the
            # interpreter exits, after `close` has stored what waits.
            cache = open_node_cache(limit_bytes=0 if store.in_process else node_cache_bytes)
            self._encoder = Encoder(self._announcer.records.algorithm, cache)
            self._thread = background.start(
                self,
                self._changed,
                due=StatePublisher._due,
                work=StatePublisher._work,
                ended=store.close,  # A call that `close` did not wait for may have connected anew.
                name="redis-state-sync-publish",
            )
        except BaseException:
            store.close()
            raise

    def __repr__(self) -> str:
        return f"StatePublisher({self.keys.namespace!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a StatePublisher owns its generation of a namespace and can not be pickled; "
            "make one where the learner runs"
        )

    @property
    def generation(self) -> int:
        """The generation that this learner claimed."""
        return self._announcer.generation

    @property
    def last_version(self) -> Version | None:
        """The newest version that is stored, or None."""
        last = self._announcer.last
        return last.version if last else None

    @property
    def healthy(self) -> bool:
        """Whether the last attempt to reach the store succeeded."""
        return self._cooldown.failures == 0

    def publish(
        self,
        components: Mapping[str, Any],
        *,
        weights_seq_no: int | None = None,
        remove: Collection[str] = (),
        only_if_changed: bool = False,
    ) -> Publication:
        """Publishes in the background. The latest state wins: one still waiting is replaced.

        Args:
            components: Component name -> tree, see `redis_state_sync.codec`. The trees are copied
                before this returns. Components that are absent keep what they had.
            weights_seq_no: RLlib's counter of gradient updates, an int in [0, 2**63), or None to
                keep the last one.
            remove: Names of components to leave out from now on.
            only_if_changed: Announce no new version if everything is as in the newest one.

        Returns:
            A handle with the version and `wait`.

        Raises:
            EncodeError: If a value can not be published; nothing is.
            SettingsError: If an argument is wrong, or the publisher is closed or another process's.
            StalePublisherError: If another learner took over.
        """
        self._check_usable()
        if not isinstance(components, Mapping):
            raise SettingsError(
                f"components must map names to trees, as in {{'rl_module/p0': weights}}, not a "
                f"{type(components).__name__}"
            )
        if not components and not self._latest:
            raise SettingsError("nothing to publish: no components were given, now or before")
        check_seq_no(weights_seq_no)
        for name in components:
            check_name(name)
        before = self._latest
        encoded = {
            name: self._encoder.encode(name, tree, before.get(name))
            for name, tree in components.items()
        }
        with self._changed:
            self._check_usable()
            kept = {n: b for n, b in self._latest.items() if n not in remove}
            latest = {**kept, **encoded}
            self._check_size(latest)
            self._latest = latest
            if weights_seq_no is not None:
                self._weights_seq_no = weights_seq_no
            return self._enqueue(only_if_changed)

    def publish_again(self, snapshot: Snapshot) -> Publication:
        """Publishes an old state, whole, as a new version. What is stored of it is not sent.

        The learner's own weights stay what they are, and its next `publish` follows from them.

        Args:
            snapshot: What `History.fetch` returned. Components that it lacks are left out.

        Returns:
            As `publish`.

        Raises:
            As `publish`; ApplyError, DecodeError: As a look-up in `snapshot`.
        """
        return self.publish(
            dict(snapshot),
            weights_seq_no=snapshot.weights_seq_no,
            remove=self._latest.keys() - snapshot.keys(),
        )

    def flush(self, timeout: float) -> Version | None:
        """Waits until everything published so far is stored, and what it pushed out is dropped.

        Raises:
            As `Publication.wait`.
        """
        self._check_process()
        self._check_thread()
        deadline = time.monotonic() + timeout
        publication: Publication | None = None
        with self._changed:
            waiting = self._queue.waiting
            if waiting is not None:
                version = Version(self.generation, self._number)
                publication = Publication(version, self._changed, self._awaited)
                waiting.add(publication)
            else:
                self._raise_if_refused()
        stored = publication.wait(timeout) if publication else self.last_version
        with self._changed:
            while self._queue.busy and not self._queue.waits and time.monotonic() < deadline:
                self._changed.wait(deadline - time.monotonic())
        return stored

    def close(self, timeout: float = 2.0) -> None:
        """Stores what is still waiting if that is possible in time, then ends the thread."""
        if self._pid != os.getpid():
            return  # Before the lock: the fork may have copied it while the thread held it.
        own_thread = threading.current_thread() is self._thread  # An observer closes it.
        deadline = time.monotonic() + timeout
        with self._changed:
            if self._closed:
                return
            self._hurry()
            while (self._queue.waits or self._queue.busy) and not self._refused and self.healthy:
                if own_thread:
                    break
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            self._closed = True
            self._changed.notify_all()
        if not own_thread:
            self._thread.join(max(0.0, deadline - time.monotonic()) + 0.2)
        self.store.close()
        self._encoder.close()

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            raise SettingsError(
                "this StatePublisher was made in another process (a fork); make one here"
            )

    def _check_thread(self) -> None:
        if threading.current_thread() is self._thread:
            raise SettingsError(
                "an observer runs on the publishing thread and can not wait for a version: it "
                "would wait for itself"
            )

    def _check_usable(self) -> None:
        self._check_process()
        if self._closed:
            raise SettingsError("this StatePublisher is closed")
        self._raise_if_refused()

    def _raise_if_refused(self) -> None:
        if self._refused is not None:
            raise fresh(self._refused)

    def _check_size(self, blobs: Mapping[str, Blob]) -> None:
        size = sum(len(blob) for blob in blobs.values())
        if size > self._max_state_bytes:
            raise EncodeError(
                f"a state of {size} bytes; max_state_bytes is {self._max_state_bytes}: raise it "
                "here and for every reader"
            )

    def _enqueue(self, only_if_changed: bool) -> Publication:
        self._number += 1
        version = Version(self.generation, self._number)
        publication = Publication(version, self._changed, self._awaited)
        self._queue.put(
            version,
            self._latest,
            self._weights_seq_no,
            only_if_changed=only_if_changed,
            publication=publication,
        )
        self._changed.notify_all()
        return publication

    def _awaited(self) -> None:
        """Someone waits for a version. The caller holds the condition."""
        self._check_thread()
        self._hurry()

    def _hurry(self) -> None:
        """Do not sit out the cool-down. The caller holds the condition."""
        self._cooldown = Cooldown(self._cooldown.failures, 0.0)
        self._changed.notify_all()

    def _due(self) -> background.Due | None:
        if self._closed or self._refused is not None:
            return None
        waits = self._queue.waits
        due = self._cooldown.until if waits else max(self._cooldown.until, self._next_beat)
        return background.Due(due - time.monotonic(), waits)

    def _work(self) -> None:
        self._tell_news()
        with self._changed:
            if self._closed:
                return
            job = self._queue.take()
        if job is not None:
            self._attempt(job)
            # Publishes that follow each other closely leave time for it, too: what is pinned must
            # not expire.
            over = self._closed or self._refused is not None
            if over or not self.healthy or time.monotonic() < self._next_beat:
                return
        self._attempt_call("heartbeat", self._heartbeat)
        self._next_beat = time.monotonic() + self._heartbeat_s

    def _attempt(self, job: Job) -> None:
        stored: list[Version] = []
        error = self._attempt_call("publish", lambda: stored.append(self._store_job(job)))
        with self._changed:
            if error is None:
                self._queue.stored(job, stored[0])
            elif self._refused is None:
                self._queue.failed(job, error)
            self._changed.notify_all()
        if error is None:
            self._tidy(self._announcer.retain)
        self._tell_news()
        with self._changed:
            self._queue.busy = False
            self._changed.notify_all()

    def _tidy(self, drop: Callable[[], None]) -> None:
        """Drops what need not be kept. Nobody waits for it, and it may fail."""
        try:
            drop()
        except Exception as error:  # As in _attempt_call: the thread must live on.
            self._note_failure("retain", _known("retain", error), warn=not self._untidy)
            self._untidy = True
        else:
            self._untidy = False

    def _attempt_call(self, operation: str, call: Callable[[], None]) -> RedisStateSyncError | None:
        try:
            call()
        except StalePublisherError as error:
            self._note_failure(operation, error)
            with self._changed:
                self._refused = error.with_traceback(None)
                self._queue.refused(self._refused)
                self._changed.notify_all()
            return error
        except Exception as error:
            # Nobody else would ever see it on this thread, and the thread must live on.
            known = _known(operation, error)
            self._note_failure(operation, known)
            with self._changed:
                self._cooldown = self._cooldown.failed(time.monotonic(), random.random())
                self._changed.notify_all()
            # Its frames hold the whole state, and this one would hold it.
            return known.with_traceback(None)
        with self._changed:
            recovered, self._cooldown = self._cooldown.failures > 0, Cooldown()
            self._changed.notify_all()
        if recovered:
            logger.info("%s is back: %s", self.store.describe(), operation)
            notify(self._observers, Recovered(operation))
        return None

    def _tell_news(self) -> None:
        """Tells of what happened on other threads, or below."""
        if self.generation != self._known_generation:
            self._known_generation = self.generation
            notify(self._observers, Claimed(self.generation))
        dropped = self.stats.dropped
        if dropped > self._known_dropped:
            count, self._known_dropped = dropped - self._known_dropped, dropped
            notify(self._observers, Dropped(count))

    def _note_failure(
        self, operation: str, error: RedisStateSyncError, *, warn: bool = True
    ) -> None:
        self.stats.failures[error.category] = self.stats.failures.get(error.category, 0) + 1
        if isinstance(error, StalePublisherError):
            logger.error("%s was refused: %s", operation, error)
        elif warn and self._cooldown.failures == 0:  # Once for each outage.
            logger.warning("%s failed, will be tried again: %s", operation, error)
        notify(self._observers, Failed(operation, error.category, str(error)))

    def _store_job(self, job: Job) -> Version:
        announcer = self._announcer
        if job.only_if_changed:
            same = announcer.published(job.blobs, job.weights_seq_no)
            if same is not None:
                return same
        started = time.monotonic()
        stored = announcer.announce(job.version.number, job.blobs, job.weights_seq_no)
        seconds = time.monotonic() - started
        stats = self.stats
        stats.publishes += 1
        stats.bytes_sent += stored.bytes_sent
        stats.bytes_saved += stored.bytes_saved
        stats.last_seconds = seconds
        notify(
            self._observers,
            Published(stored.version, stored.bytes_sent, stored.bytes_saved, seconds),
        )
        return stored.version

    def _heartbeat(self) -> None:
        started = time.monotonic()
        lost = self._announcer.look_after()
        notify(self._observers, Looked(time.monotonic() - started))
        if lost:
            logger.warning(
                "%s lost version %s of namespace %r, or a blob of it: publishing it again",
                self.store.describe(),
                self.last_version,
                self.keys.namespace,
            )
            with self._changed:
                if not self._queue.waits:
                    self._enqueue(False)
        self._tidy(self._announcer.forget_readers)


def _known(operation: str, error: Exception) -> RedisStateSyncError:
    """An error as one of ours. One that nobody expected is logged with its traceback."""
    if isinstance(error, RedisStateSyncError):
        return error
    logger.error("unexpected error during %s", operation, exc_info=error)
    known = StoreError(f"unexpected {type(error).__name__} during {operation}")
    known.__cause__ = error
    return known
