"""Files of a node's cache that can be told from each other."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

from redis_state_sync.leases import Lease
from redis_state_sync.node_cache import NodeCache, open_node_cache

KIB = 1 << 10
LONG = 20.0
"""Far longer than anything takes, in seconds."""


def content(name: str, size: int) -> bytes:
    """What the file of that name holds."""
    return random.Random(name).randbytes(size)


def opened(folder: Path, limit: int | None = None) -> NodeCache:
    """The cache in a folder where there can be one."""
    cache = open_node_cache(str(folder), limit)
    assert cache is not None
    return cache


def written(cache: NodeCache, name: str, size: int) -> Lease:
    """Writes the file of that name."""
    slot = cache.slot(name, size)
    assert slot is not None
    slot.buffer[:] = content(name, size)
    return slot.commit()


def filler(name: str, size: int) -> Callable[[memoryview, Callable[[], None]], None]:
    """Fills the file of that name."""

    def fill(buffer: memoryview, progress: Callable[[], None]) -> None:
        buffer[:] = content(name, size)

    return fill


def holds(lease: Lease | None, name: str) -> bool:
    """Whether a lease is on the right bytes."""
    return lease is not None and lease.map() == content(name, lease.size)


def own_folder(folder: Path) -> Path:
    """The cache's own folder."""
    return folder / f"redis-state-sync-{os.geteuid()}"


def files(folder: Path) -> list[str]:
    """Names of the files that the cache has there."""
    own = own_folder(folder)
    return sorted(set(os.listdir(own)) - {"users"}) if own.exists() else []


def wait_for(condition: Callable[[], bool]) -> None:
    """Waits until something is so."""
    deadline = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)
