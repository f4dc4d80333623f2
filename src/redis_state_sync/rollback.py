"""An old state becomes the newest version again, by somebody who is not the learner."""

from __future__ import annotations

import getpass
import os
import socket
import time
from dataclasses import replace

from redis_state_sync.errors import LearnerAliveError, NotNewerError, SettingsError
from redis_state_sync.history import History
from redis_state_sync.manifest import Manifest, Writer
from redis_state_sync.records import is_signed
from redis_state_sync.store import Entry
from redis_state_sync.takeover import Tenure
from redis_state_sync.version import Version

# Three of a learner's heartbeats.
WATCH_S = 1.6
# What may lie between the expiry that was set and the one that is read, without a refresh.
_SLACK_S = 0.4


def was_refreshed(before: float | None, after: float | None, passed: float) -> bool:
    """Whether an expiry was set anew in between.

    Args:
        before: Seconds that were left; None: there was none.
        after: Seconds that are left now.
        passed: Seconds since `before` was read, at least.
    """
    return before is not None and after is not None and after > before - passed + _SLACK_S


def learner_at_work(history: History, *, watch_s: float = WATCH_S) -> str | None:
    """Looks for a while whether a learner looks after the namespace.

    A learner whose heartbeat is slower than `watch_s` is not noticed, unless it publishes.

    Args:
        history: Of which namespace.
        watch_s: How long to watch, in seconds.

    Returns:
        What shows that there is one, in a few words; None if nothing does.

    Raises:
        StoreError: If the store fails.
    """
    store, keys, timeout = history.store, history.keys, history.timeout_s
    top = store.newest(keys, timeout=timeout)
    if not top:
        return None
    if top[0].version.is_claim:
        return "it took the namespace over and has not published yet"
    since = time.monotonic()
    before = store.expires_in(keys, timeout=timeout)
    time.sleep(watch_s)
    if store.newest(keys, timeout=timeout) != top:
        return "it has just published"
    after = store.expires_in(keys, timeout=timeout)
    if was_refreshed(before, after, time.monotonic() - since):
        return "it refreshes what is stored"
    return None


def check_no_learner(history: History, *, watch_s: float = WATCH_S) -> None:
    """Raises `LearnerAliveError` if a learner is at work, see `learner_at_work`."""
    sign = learner_at_work(history, watch_s=watch_s)
    if sign is not None:
        raise LearnerAliveError(
            f"a learner is at work in namespace {history.keys.namespace!r} at "
            f"{history.store.describe()}: {sign}. It would be refused from now on, and stop; if "
            "that is meant: take_over=True, or --take-over"
        )


def check_signed(history: History, entry: Entry) -> None:
    """Raises `SettingsError` if a record is signed, and there is no key to sign another with."""
    if history.records.keyring is None and is_signed(entry.manifest):
        raise SettingsError(
            f"version {entry.version} is signed, and readers may take nothing else: set "
            "REDIS_STATE_SYNC_SIGNING_KEY_FILE to sign the new one"
        )


def roll_back(
    history: History,
    which: Version | str,
    *,
    take_over: bool = False,
    watch_s: float = WATCH_S,
) -> Version:
    """Publishes an old state as a new version of a new generation. No blob is sent.

    Readers that follow one learner only (RLlib's EnvRunners) do not take it; all others do. A
    learner that is at work publishes old states itself, by `StatePublisher.publish_again`.

    Args:
        history: Of which namespace. The user needs a learner's rights.
        which: As `History.find`.
        take_over: Do so although a learner is at work: it is refused from then on, and stops.
        watch_s: How long to look for one, in seconds.

    Returns:
        The new version.

    Raises:
        LearnerAliveError: If a learner is at work; or if one took over meanwhile, `take_over` or
            not. Nothing is published then.
        UnknownVersionError: If there is no such version.
        BlobMissingError: If it is not whole.
        SettingsError: If it is signed, and there is no key to sign the new version with.
        CodecError: If its record is damaged, or not signed as it must be.
        StoreError: If the store fails.
    """
    entry, _ = history.find(which)
    check_signed(history, entry)
    if not take_over:
        check_no_learner(history, watch_s=watch_s)
    # No learner drops it meanwhile, and all of it is there.
    guard = f"rollback/{socket.gethostname()}/{os.getpid()}/{time.time_ns()}"
    version = history.pin(guard, entry.version)
    try:
        return _announce(history, history.find(version)[1])
    finally:
        history.unpin(guard)


def _announce(history: History, old: Manifest) -> Version:
    store, keys = history.store, history.keys
    host, pid = socket.gethostname(), os.getpid()
    writer = Writer(outsider("rollback"), host, pid)
    tenure = Tenure(
        store, keys, history.records, writer, ttl_s=history.ttl_s, timeout=history.timeout_s
    )
    version = Version(tenure.generation, 1)
    manifest = replace(old, writer=writer, time_ms=time.time_ns() // 1_000_000)
    record = history.records.seal(version, manifest)
    try:
        store.append(keys, version, record, ttl_s=history.ttl_s, timeout=history.timeout_s)
    except NotNewerError as error:
        raise LearnerAliveError(
            f"a learner took namespace {keys.namespace!r} at {store.describe()} over meanwhile"
        ) from error
    return version


def outsider(what: str) -> str:
    """A writer's id that says who did what by hand."""
    return f"{what} by {_user()}@{socket.gethostname()}/{os.getpid()}/{time.time_ns()}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # Of a container's user there may be no name.
        return str(os.getuid())
