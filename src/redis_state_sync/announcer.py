"""What a publisher does to the store: take over, upload and announce, look after what is there."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from redis_state_sync.blobs import Blob
from redis_state_sync.errors import (
    CodecError,
    NotNewerError,
    StoreError,
    StoreFullError,
)
from redis_state_sync.keyring import Keyring
from redis_state_sync.keys import Keys
from redis_state_sync.manifest import Manifest, Writer
from redis_state_sync.records import Records
from redis_state_sync.retention import Retention
from redis_state_sync.store import Entry, Store
from redis_state_sync.takeover import Tenure
from redis_state_sync.version import LAST_NUMBER, Version

logger = logging.getLogger("redis_state_sync")

# How many blobs one look after the store asks for, unless their expiry leaves no time for so few.
_LOOK_AT = 64
# In the time that a reader's note counts. With the default of a day: every hour.
_LOOKS_AT_READERS = 24


@dataclass(frozen=True, slots=True)
class Announced:
    """A stored version. Bytes are of blobs: sent, and left out because the store has them."""

    version: Version
    manifest: Manifest
    bytes_sent: int
    bytes_saved: int


class Announcer:
    """One generation of a namespace. No threads: every method does its work and returns.

    Args:
        store: Where to publish.
        keys: Of which namespace.
        writer: Who publishes.
        history: How many of the newest versions to keep.
        ttl_s: Seconds until what is not refreshed expires.
        probe_timeout_s: Most seconds for taking over and for looking after the store.
        transfer_timeout_s: Most seconds for storing one version.
        keyring: Signs every record, and tells another learner's from a forger's. None: neither.

    Raises:
        StoreError: If the namespace can not be taken over.
    """

    def __init__(
        self,
        store: Store,
        keys: Keys,
        writer: Writer,
        *,
        history: int,
        ttl_s: float,
        probe_timeout_s: float,
        transfer_timeout_s: float,
        keyring: Keyring | None = None,
    ) -> None:
        self.store = store
        self.keys = keys
        self.writer = writer
        self.records = Records(keys, keyring)
        self.retention = Retention(store, keys, self.records, history, ttl_s)
        self._ttl_s = ttl_s
        self._probe_timeout_s = probe_timeout_s
        self._timeout_s = transfer_timeout_s
        self._looked_at = 0
        self._forget_at = 0.0
        # Blobs sent since the last tidying up: a version that failed may have left some.
        self._uploaded: set[str] = set()
        self.last: Announced | None = None
        self._tenure = Tenure(
            store, keys, self.records, writer, ttl_s=ttl_s, timeout=probe_timeout_s
        )
        self.retention.load(timeout=probe_timeout_s)
        self.retention.look_at_pins(timeout=probe_timeout_s)

    @property
    def generation(self) -> int:
        """The generation that this learner claimed last."""
        return self._tenure.generation

    def announce(
        self, number: int, blobs: Mapping[str, Blob], weights_seq_no: int | None
    ) -> Announced:
        """Stores a version: first the blobs that the store lacks, then the manifest.

        Args:
            number: Its number within this generation.
            blobs: Component name -> encoded component.
            weights_seq_no: See `Manifest`.

        Raises:
            StalePublisherError: If another learner took over.
            StoreError: If the store fails. Nothing is announced, and it can be tried again.
        """
        try:
            return self._announce(number, blobs, weights_seq_no)
        except StoreFullError:
            self._make_room()
            raise

    def _announce(
        self, number: int, blobs: Mapping[str, Blob], weights_seq_no: int | None
    ) -> Announced:
        manifest = self.describe(blobs, weights_seq_no)
        self._drop_strays(manifest)
        sent, saved = self._upload(blobs.values())
        for blob in blobs.values():
            blob.share(self.keys.namespace)  # Before anyone asks for it.
        version = Version(self.generation, number)
        try:
            self._append(version, manifest)
        except NotNewerError as error:
            (top,) = self.store.newest(self.keys, timeout=self._probe_timeout_s) or (None,)
            if top is None:
                raise  # Wiped in between, so nobody took over: it is tried again.
            version = self._beyond(top, number, manifest, error)
        self.last = Announced(version, manifest, sent, saved)
        return self.last

    def _beyond(self, top: Entry, number: int, manifest: Manifest, error: NotNewerError) -> Version:
        """A version that was refused: says under which one it is stored, or stores it."""
        ours = top.version.generation == self.generation
        if ours and self._holds(top, manifest):
            return top.version  # An earlier try was stored, and its reply lost.
        if ours and top.version.number < LAST_NUMBER:
            # Who takes over has a greater generation: this was written by someone who may not.
            number = top.version.number + 1
        else:
            self._tenure.contested(top, error)
        version = Version(self.generation, number)
        self._append(version, manifest)
        return version

    def _append(self, version: Version, manifest: Manifest) -> None:
        record = self.records.seal(version, manifest)
        self.store.append(self.keys, version, record, ttl_s=self._ttl_s, timeout=self._timeout_s)

    def _holds(self, entry: Entry, manifest: Manifest) -> bool:
        try:
            found = self.records.open(entry)
        except CodecError:
            return False
        return found.writer == self.writer and found.components == manifest.components

    def describe(self, blobs: Mapping[str, Blob], weights_seq_no: int | None) -> Manifest:
        """The manifest of a version that consists of these blobs."""
        return Manifest(
            writer=self.writer,
            time_ms=time.time_ns() // 1_000_000,
            components={name: blob.component for name, blob in blobs.items()},
            weights_seq_no=weights_seq_no,
            algorithm=self.records.algorithm,
        )

    def published(self, blobs: Mapping[str, Blob], weights_seq_no: int | None) -> Version | None:
        """The newest version if it consists of just this, else None."""
        if self.last is None:
            return None
        newest = self.last.manifest
        components = {name: blob.component for name, blob in blobs.items()}
        same = newest.components == components and newest.weights_seq_no == weights_seq_no
        return self.last.version if same else None

    def retain(self) -> None:
        """Drops what the newest version pushes out, and uploads that no version came to use.

        Raises:
            StoreError: If the store fails. What was not dropped is dropped next time, or expires.
        """
        if self.last is None:
            return
        strays = self._uploaded - self.last.manifest.digests().keys()
        self.retention.keep(
            self.last.version, self.last.manifest, strays=strays, timeout=self._timeout_s
        )
        self._uploaded.clear()

    def _drop_strays(self, manifest: Manifest) -> None:
        """Uploads of versions that failed, and were replaced: each would leave its own behind."""
        strays = self._uploaded - manifest.digests().keys()
        if not strays:
            return
        try:
            self.retention.tidy(strays=strays, timeout=self._probe_timeout_s)
        except StoreError:
            return  # What follows meets it, too, or `retain` does.
        self._uploaded -= strays

    def forget_readers(self) -> None:
        """Now and then drops the notes of readers that are gone: each restarted one has a new name.

        Raises:
            StoreError: If the store fails.
        """
        now = time.monotonic()
        if now < self._forget_at:
            return
        self._forget_at = now + self._ttl_s / _LOOKS_AT_READERS
        self.store.forget_readers(
            self.keys,
            now_ms=time.time_ns() // 1_000_000,
            ttl_s=self._ttl_s,
            timeout=self._probe_timeout_s,
        )

    def _make_room(self) -> None:
        """Old versions must not keep a full store from ever taking a new one."""
        try:
            dropped = self.retention.make_room(strays=self._uploaded, timeout=self._timeout_s)
        except StoreError:
            return  # That it is full is what the caller has to know.
        self._uploaded.clear()
        if dropped:
            logger.warning(
                "%s is full: dropped %d older versions of namespace %r to make room",
                self.store.describe(),
                len(dropped),
                self.keys.namespace,
            )

    def look_after(self) -> bool:
        """Refreshes expiries, and finds out whether the newest version has to be published again.

        Returns:
            Whether the store lost it, or one of its blobs, or a reader found one damaged.

        Raises:
            StalePublisherError: If another learner took over.
            StoreError: If the store fails.
        """
        newest = self.store.newest(self.keys, timeout=self._probe_timeout_s)
        if newest and newest[0].version.generation > self.generation:
            self._tenure.contested(newest[0])
            return self.last is not None
        if self.last is None:
            if not newest or newest[0].version.generation < self.generation:
                self._tenure.restore()
            return False
        if not newest or newest[0].version < self.last.version:
            return True
        own = self.last.manifest.digests()
        missing = self.store.refresh(
            self.keys,
            self._next_digests([*own, *self.retention.other_digests(self.last.manifest)]),
            ttl_s=self._ttl_s,
            timeout=self._probe_timeout_s,
            pinned=self.retention.lasting,
        )
        self.retention.look_at_pins(timeout=self._probe_timeout_s)
        return not missing.isdisjoint(own)

    def _next_digests(self, digests: list[str]) -> list[str]:
        """A few of them in turn: thousands of blobs must not make a storm of every look.

        At one look each half second, all have had their turn well before they could expire.
        """
        looks = max(1.0, self._ttl_s / 2)
        count = max(_LOOK_AT, math.ceil(len(digests) / looks))
        start = self._looked_at if self._looked_at < len(digests) else 0
        self._looked_at = start + count
        return digests[start : start + count]

    def _upload(self, blobs: Iterable[Blob]) -> tuple[int, int]:
        """Refreshes what the store has and sends what it lacks: a wiped or evicted store heals."""
        pieces = {digest: data for blob in blobs for digest, data in blob.pieces()}
        deadline = time.monotonic() + self._timeout_s
        missing = self.store.refresh(
            self.keys,
            list(pieces),
            ttl_s=self._ttl_s,
            timeout=self._timeout_s,
            pinned=self.retention.lasting,
        )
        to_send = {digest: data for digest, data in pieces.items() if digest in missing}
        self._uploaded |= to_send.keys()
        if to_send:
            self.store.put_blobs(
                self.keys,
                to_send,
                ttl_s=self._ttl_s,
                timeout=max(0.001, deadline - time.monotonic()),
            )
        sent = sum(len(data) for data in to_send.values())
        return sent, sum(len(data) for data in pieces.values()) - sent
