"""How a learner takes a namespace over and holds it, and how a refused one says who replaced it."""

from __future__ import annotations

import logging
import time

from redis_state_sync.decisions import next_generation
from redis_state_sync.errors import (
    CodecError,
    NotNewerError,
    SignatureError,
    StalePublisherError,
    StoreError,
    StoreTimeoutError,
)
from redis_state_sync.keys import Keys
from redis_state_sync.manifest import Manifest, Writer
from redis_state_sync.records import Records
from redis_state_sync.store import Entry, Store
from redis_state_sync.version import LAST_GENERATION, Version

logger = logging.getLogger("redis_state_sync")


class Tenure:
    """One learner's hold on a namespace. Making one takes it over.

    The store refuses a claim that is not greater than its newest version, so of two learners that
    claim at once both get a generation of their own, and the later one wins.

    Args:
        store: Where.
        keys: Which namespace.
        records: Writes claims, and tells another learner's versions from forged ones.
        writer: Who claims.
        ttl_s: Seconds until what is not refreshed expires.
        timeout: Most seconds for claiming.

    Raises:
        StoreError: If the store can not be reached in time, or refuses.
    """

    def __init__(
        self,
        store: Store,
        keys: Keys,
        records: Records,
        writer: Writer,
        *,
        ttl_s: float,
        timeout: float,
    ) -> None:
        self._store = store
        self._keys = keys
        self._records = records
        self._writer = writer
        self._ttl_s = ttl_s
        self._timeout = timeout
        self.generation = self._take_over()

    def restore(self) -> None:
        """Puts back a claim that the store lost: without it older learners are not refused.

        Raises:
            StoreError: If the store fails.
        """
        try:
            self._claim(self.generation, time.time_ns() // 1_000_000, self._timeout)
        except NotNewerError:
            pass  # Someone was faster; the next look tells who.

    def contested(self, top: Entry, cause: Exception | None = None) -> None:
        """A version that is not ours is on top: the end of this learner, unless it is forged.

        Raises:
            StalePublisherError: If another learner took over.
            StoreError: If the store fails.
        """
        who = f"generation {top.version.generation}"
        try:
            who += f" of {self._records.open(top).writer}"
        except SignatureError as forged:
            # Else whoever can write to the store could end any training by one entry.
            logger.warning(
                "%s: version %s of namespace %r was made by no learner with our signing key (%s): "
                "taking the namespace over again",
                self._store.describe(),
                top.version,
                self._keys.namespace,
                forged,
            )
            self.generation = self._take_over()
            return
        except CodecError:
            who += " (unreadable record)"  # Of a newer format, perhaps: nobody can tell.
        raise StalePublisherError(
            f"namespace {self._keys.namespace!r} at {self._store.describe()} was taken over by "
            f"{who}; generation {self.generation} must stop. If both learners should run, give "
            "each a namespace of its own"
        ) from cause

    def _take_over(self) -> int:
        deadline = time.monotonic() + self._timeout
        while True:
            newest = self._store.newest(self._keys, timeout=_left(deadline))
            server_ms = self._store.time_ms(timeout=_left(deadline))
            generation = next_generation(newest[0].version if newest else None, server_ms)
            if generation > LAST_GENERATION:
                raise StoreError(
                    f"{self._store.describe()}: namespace {self._keys.namespace!r} holds a version "
                    "of the last generation that there is, which no learner made: delete the key "
                    f"{self._keys.versions!r}, or use another namespace"
                )
            try:
                self._claim(generation, server_ms, _left(deadline))
            except NotNewerError as error:
                # Another learner was faster, or the reply to our own claim was lost: claim anew.
                if time.monotonic() >= deadline:
                    raise StoreTimeoutError(
                        f"{self._store.describe()}: namespace {self._keys.namespace!r} could not "
                        f"be taken over within {self._timeout:g} s: other learners keep claiming it"
                    ) from error
            else:
                return generation

    def _claim(self, generation: int, time_ms: int, timeout: float) -> None:
        claim = Version(generation, 0)
        manifest = Manifest(self._writer, time_ms, algorithm=self._records.algorithm)
        record = self._records.seal(claim, manifest)
        self._store.append(self._keys, claim, record, ttl_s=self._ttl_s, timeout=timeout)


def _left(deadline: float) -> float:
    return max(0.001, deadline - time.monotonic())
