"""One version on its way: the handle that a caller waits on, and the job that stores it."""

from __future__ import annotations

import copy
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from redis_state_sync.blobs import Blob
from redis_state_sync.errors import (
    PublishTimeoutError,
    RedisStateSyncError,
    SettingsError,
    StalePublisherError,
)
from redis_state_sync.version import Version

ErrorT = TypeVar("ErrorT", bound=RedisStateSyncError)


class Publication:
    """A state on its way to the store. Resolved by the first stored version that covers it.

    Args:
        version: The version that the state was given.
        changed: Notified when an attempt ends.
        started: Called by a waiter to have it tried at once.
    """

    def __init__(
        self, version: Version, changed: threading.Condition, started: Callable[[], None]
    ) -> None:
        self.version = version
        self._changed = changed
        self._hurry = started
        self._pid = os.getpid()
        self._stored: Version | None = None
        self._error: RedisStateSyncError | None = None

    @property
    def stored(self) -> Version | None:
        """The stored version that covers this one, or None as long as there is none."""
        return self._stored

    def wait(self, timeout: float, *, fail_fast: bool = False) -> Version:
        """Waits until every later poll of anyone sees this version or a newer one.

        Args:
            timeout: Seconds.
            fail_fast: Raise as soon as an attempt fails, although it goes on being tried.

        Returns:
            The stored version: this one, or the later one that replaced it.

        Raises:
            PublishTimeoutError: If it is not stored in time.
            StoreError: With `fail_fast`, why the last attempt failed.
            StalePublisherError: If another learner took over.
            SettingsError: If it was made in another process, by whose publisher alone it ends.
        """
        if self._pid != os.getpid():
            raise SettingsError(
                f"version {self.version} was published in another process (a fork); wait for it "
                "there"
            )
        deadline = time.monotonic() + timeout
        with self._changed:
            self._hurry()
            while self._stored is None:
                error = self._error
                if error is not None and (fail_fast or isinstance(error, StalePublisherError)):
                    raise fresh(error)
                left = deadline - time.monotonic()
                if left <= 0:
                    raise PublishTimeoutError(
                        f"version {self.version} was not stored within {timeout:g} s"
                        + (f"; last error: {error}" if error else "")
                    ) from error
                self._changed.wait(left)
            return self._stored

    def resolve(self, version: Version) -> None:
        """The version is stored. The caller holds the condition."""
        self._stored = version

    def fail(self, error: RedisStateSyncError) -> None:
        """An attempt failed. The caller holds the condition."""
        self._error = error


def fresh(error: ErrorT) -> ErrorT:
    """A copy to raise. One that is raised again and again collects the frames of all who got it."""
    copied = copy.copy(error)
    copied.__cause__ = error.__cause__
    return copied


@dataclass(frozen=True)
class Job:
    """A version that waits to be stored, and who may wait for it.

    Weakly: in a long outage nobody keeps most of the handles, and each would stay until its end.
    """

    version: Version
    blobs: Mapping[str, Blob]
    weights_seq_no: int | None
    only_if_changed: bool
    waiting: weakref.WeakSet[Publication]


@dataclass
class PublisherStats:
    """Totals since the publisher was made. Bytes are of blobs, seconds of whole publishes."""

    publishes: int = 0
    dropped: int = 0
    bytes_sent: int = 0
    bytes_saved: int = 0
    last_seconds: float = 0.0
    failures: dict[str, int] = field(default_factory=dict)
