"""Fetches a version's blobs: only those that this reader does not hold, and checks every one."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial

from redis_state_sync.buffer_pool import BufferPool
from redis_state_sync.download import Download
from redis_state_sync.errors import DecodeError
from redis_state_sync.keys import Keys
from redis_state_sync.manifest import Component, Manifest
from redis_state_sync.node_cache import NodeCache
from redis_state_sync.snapshot import Encoded
from redis_state_sync.store import Store
from redis_state_sync.version import Version
from redis_state_sync.wire import Buffer

# Smaller components come over a socket as fast as a file is found, opened and mapped.
SMALLEST_SHARED = 256 << 10


class Fetcher:
    """Holds the encoded components of one version: once the state's size in memory.

    Large ones are in the node's cache, if there is one and it has room: then the first reader of
    the node fetches, and all hold the same memory. The rest is in this process's own memory, of
    which what was superseded is used again.

    Args:
        store: Where to fetch.
        keys: Of which namespace.
        max_state_bytes: Most bytes of a version; more is refused before anything is fetched.
        open_cache: Opens the node's cache, if there may be one. Called when it is first needed.
        stall_timeout_s: Seconds without progress after which a download of another process of this
            node is not waited for any longer.
    """

    def __init__(
        self,
        store: Store,
        keys: Keys,
        max_state_bytes: int,
        open_cache: Callable[[], NodeCache | None],
        *,
        stall_timeout_s: float,
    ) -> None:
        self._store = store
        self._keys = keys
        self._max_state_bytes = max_state_bytes
        self._open_cache = open_cache
        self._cache: NodeCache | None = None
        self._stall_timeout_s = stall_timeout_s
        self._pool = BufferPool()
        self._components: Mapping[str, Component] = {}
        self._blobs: Mapping[str, Encoded] = {}

    def fetch(
        self, version: Version, manifest: Manifest, *, timeout: float
    ) -> tuple[Mapping[str, Encoded], int]:
        """Fetches what the manifest names and is not held yet.

        Returns:
            Component name -> encoded bytes, of the whole version; and how many bytes were fetched
            from the store: none of what was in the node's cache.

        Raises:
            DecodeError: If the manifest names more than `max_state_bytes`, or than there is memory.
            BlobMissingError: If a blob is gone.
            IntegrityError: If one does not have the size or digest that the manifest names.
            StoreError: If the store fails. In each case what was held is still held.
        """
        if manifest.size > self._max_state_bytes:
            raise DecodeError(
                f"{self._store.describe()}: version {version} of namespace "
                f"{self._keys.namespace!r} claims {manifest.size} bytes; max_state_bytes is "
                f"{self._max_state_bytes}: raise it if states are meant to be so large"
            )
        wanted: dict[str, Component] = {}
        blobs: dict[str, Encoded] = {}
        for name, component in manifest.components.items():
            if self._components.get(name) == component:
                blobs[name] = self._blobs[name]
            else:
                wanted[name] = component
        deadline = time.monotonic() + timeout
        download = Download(self._store, self._keys, version, manifest.algorithm, deadline)
        blobs |= self._shared(wanted, download)
        own = self._own(version, {n: c.size for n, c in wanted.items() if n not in blobs})
        download.fill([(wanted[name], buffer.data) for name, buffer in own.items()])
        blobs |= own
        # In the manifest's order, as what is held is looked through in it.
        self._blobs = {name: blobs[name] for name in manifest.components}
        self._components = manifest.components
        return self._blobs, download.received

    def _own(self, version: Version, sizes: Mapping[str, int]) -> dict[str, Buffer]:
        try:
            return {name: self._pool.take(size) for name, size in sizes.items()}
        except MemoryError as error:
            raise DecodeError(
                f"this process has no memory for version {version} of namespace "
                f"{self._keys.namespace!r}, of which {sum(sizes.values())} bytes are new; "
                "max_state_bytes refuses states that are too large before they are fetched"
            ) from error

    def _shared(self, wanted: Mapping[str, Component], download: Download) -> dict[str, Encoded]:
        """Those that are in the node's cache, or are now."""
        large = {n: c for n, c in wanted.items() if c.size >= SMALLEST_SHARED}
        if large and self._cache is None:
            self._cache = self._open_cache()
        if not large or self._cache is None:
            return {}
        leases: dict[str, Encoded] = {}
        for name, component in large.items():
            lease = self._cache.fetch(
                component.name_on_node(self._keys.namespace, download.algorithm),
                component.size,
                partial(download.fill_one, component),
                deadline=download.deadline,
                stall=self._stall_timeout_s,
            )
            if lease is not None:
                leases[name] = lease
        return leases
