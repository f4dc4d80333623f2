"""The latest state wins: one version on its way, one that waits, and who waits for either."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from itertools import chain

from redis_state_sync.blobs import Blob
from redis_state_sync.errors import RedisStateSyncError
from redis_state_sync.publication import Job, Publication, PublisherStats
from redis_state_sync.version import Version


class LatestWins:
    """Holds at most one version that waits. All calls are made with the publisher's condition.

    Args:
        stats: Where those are counted that were replaced before they were stored.
    """

    def __init__(self, stats: PublisherStats) -> None:
        self._stats = stats
        self._pending: Job | None = None
        # Who waits for the version that is being stored; None when none is.
        self._in_flight: weakref.WeakSet[Publication] | None = None
        self.busy = False
        """Whether a version is being stored, or what it pushed out is being dropped."""

    @property
    def waits(self) -> bool:
        """Whether a version waits to be stored."""
        return self._pending is not None

    @property
    def waiting(self) -> weakref.WeakSet[Publication] | None:
        """Who waits for the latest version that is not stored yet; None if all are."""
        return self._pending.waiting if self._pending else self._in_flight

    def put(
        self,
        version: Version,
        blobs: Mapping[str, Blob],
        weights_seq_no: int | None,
        *,
        only_if_changed: bool,
        publication: Publication,
    ) -> None:
        """A version is to be stored, in place of the one that waits, if one does."""
        waiting = weakref.WeakSet([publication])
        if self._pending is not None:
            self._stats.dropped += 1
            waiting |= self._pending.waiting
            only_if_changed = only_if_changed and self._pending.only_if_changed
        self._pending = Job(version, dict(blobs), weights_seq_no, only_if_changed, waiting)

    def take(self) -> Job | None:
        """The version that waits, to be stored now."""
        job, self._pending = self._pending, None
        self.busy = job is not None
        self._in_flight = job.waiting if job else None
        return job

    def stored(self, job: Job, version: Version) -> None:
        """A version that was taken is stored, under this one."""
        self._in_flight = None
        for publication in job.waiting:
            publication.resolve(version)

    def failed(self, job: Job, error: RedisStateSyncError) -> None:
        """A version that was taken is not stored: it waits again, unless a newer one does."""
        self._in_flight = None
        for publication in job.waiting:
            publication.fail(error)
        if self._pending is None:
            self._pending = job
        else:
            self._stats.dropped += 1
            self._pending.waiting.update(job.waiting)

    def refused(self, error: RedisStateSyncError) -> None:
        """Nothing will ever be stored again."""
        waiting = [self._in_flight or (), self._pending.waiting if self._pending else ()]
        for publication in chain(*waiting):
            publication.fail(error)
        self._pending = self._in_flight = None
