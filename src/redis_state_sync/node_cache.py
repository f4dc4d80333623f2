"""One download per node and version: encoded components in shared memory, for all its processes.

Linux only. Files are named by what they hold, so a name never stands for something else. What
somebody holds a lease on stays; the rest goes when its memory is needed, for the next file if it
fits: pages that were used before are many times faster than fresh ones.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import sys
import time
import weakref
from collections.abc import Callable
from typing import NamedTuple

from redis_state_sync.leases import PART, Lease, OfThisProcess, Slot
from redis_state_sync.node_folder import NodeFolder, tell_once

FOLDER_ENV = "REDIS_STATE_SYNC_NODE_CACHE"
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - what is made there is private, and checked to be
_NAME = re.compile(r"[0-9a-f]{1,64}")
# How long nobody may hold or find a file until the next writer removes it, room or not.
_IDLE_S = 60.0
# How often to look whether another process has written what this one waits for.
_SHORTEST_LOOK_S = 0.001
_LONGEST_LOOK_S = 0.02

Fill = Callable[[memoryview, Callable[[], None]], None]
"""Writes all of a buffer, and calls the function now and then to say that it goes on."""


def open_node_cache(folder: str | None = None, limit_bytes: int | None = None) -> NodeCache | None:
    """The cache that all processes of this user on this node share: one object per process.

    Args:
        folder: Where it is; it has a folder of its own there, which ends with the last process
            that uses it. Default: REDIS_STATE_SYNC_NODE_CACHE of the environment, else /dev/shm.
        limit_bytes: Most bytes of all files in it. Default: half of the file system. 0: no cache.

    Returns:
        The cache, or None if there can be none; a line in the log says why.
    """
    if limit_bytes == 0:
        return None
    parent = os.path.abspath(folder or os.environ.get(FOLDER_ENV) or _SHARED_MEMORY)
    path = os.path.join(parent, f"redis-state-sync-{os.geteuid()}")
    try:
        if sys.platform != "linux":
            raise OSError(errno.ENOTSUP, "it needs Linux")
        # Should two threads make one each, that does no harm.
        cache = _caches.get((path, limit_bytes)) or NodeCache(path, limit_bytes)
    except OSError as error:
        tell_once(path, error)
        return None
    _caches[path, limit_bytes] = cache
    return cache


class _Writing(NamedTuple):
    file: int
    touched: int
    """When its writer said last that it goes on."""


class NodeCache(OfThisProcess):
    """Safe for threads and after a fork. What can not be done is None, and a line in the log.

    A name is 1 to 64 hexadecimal digits, and stands for the same bytes for ever.

    Args:
        path: Of its own folder.
        limit_bytes: Most bytes of all files in it, or None: half of the file system.

    Raises:
        OSError: If the folder can not be used.
    """

    def __init__(self, path: str, limit_bytes: int | None) -> None:
        self._path = path
        self._folder: NodeFolder | None = NodeFolder(path)
        self._limit = self._folder.capacity() // 2 if limit_bytes is None else limit_bytes

    def find(self, name: str, size: int) -> Lease | None:
        """A lease on a file that is there, whole and of `size` bytes."""
        _check(name)
        try:
            return self._find(name, size)
        except (FileNotFoundError, BlockingIOError):
            return None
        except OSError as error:
            self._tell(error)
            return None

    def slot(self, name: str, size: int) -> Slot | None:
        """Room for a new file of `size` bytes.

        Returns:
            A slot, or None: there is no room, or somebody is writing that file or has written it.
        """
        _check(name)
        try:
            return self._begin(name, size)
        except BlockingIOError:
            return None
        except OSError as error:
            self._tell(error)
            return None

    def fetch(
        self, name: str, size: int, fill: Fill, *, deadline: float, stall: float
    ) -> Lease | None:
        """A lease on a file, which one thread of all processes fills if it is not there.

        The others wait for it. If it fails or is killed, another one of them fills the file.

        Args:
            name: Of the file.
            size: In bytes.
            fill: Writes all of the file. What it raises is raised here.
            deadline: Until when to wait for another, on the clock of `time.monotonic`.
            stall: How long to wait for others that do not go on, in seconds.

        Returns:
            A lease, or None: there is no room, or the time is over.
        """
        _check(name)
        look, since, seen = _SHORTEST_LOOK_S, time.monotonic(), self._writing(name)
        while True:
            lease = self.find(name, size)
            if lease is not None:
                return lease
            try:
                slot = self._begin(name, size)
            except BlockingIOError:
                pass
            except OSError as error:
                self._tell(error)
                return None
            else:
                return _filled(slot, fill)
            now, before, seen = time.monotonic(), seen, self._writing(name)
            # Another writer is no progress: one after the other may fail for the same reason.
            if seen and before and seen.file == before.file and seen.touched != before.touched:
                since = now
            if now >= deadline or now - since >= stall:
                return None
            time.sleep(min(look, deadline - now))
            look = min(look * 1.5, _LONGEST_LOOK_S)

    def _joined(self) -> NodeFolder:
        folder = self._folder
        if folder is None or folder.pid != os.getpid():
            folder = self._folder = NodeFolder(self._path)
        return folder

    def _tell(self, error: OSError) -> None:
        tell_once(self._path, error)
        if isinstance(error, FileNotFoundError):
            self._folder = None  # Removed by somebody: the next call makes it again.

    def _find(self, name: str, size: int) -> Lease | None:
        lease = Lease(self._joined().open(name, fcntl.LOCK_SH), size)
        if os.fstat(lease.fileno()).st_size != size:
            return None
        os.utime(lease.fileno())
        return lease

    def _begin(self, name: str, size: int) -> Slot:
        if not 0 < size <= self._limit:
            raise OSError(
                errno.EFBIG, f"it holds no file of {size} bytes, with {self._limit} in all"
            )
        folder, part = self._joined(), name + PART
        with folder.books():
            there = folder.status(name)
            if (there is not None and there.st_size == size) or folder.is_held(part):
                raise BlockingIOError(errno.EAGAIN, "it is there, or about to be")
            self._make_room(folder, part, size)
            try:  # Left by a writer that died, or made from an older file.
                fd = folder.open(part, fcntl.LOCK_EX)
            except FileNotFoundError:
                fd = folder.create(part)
            try:
                # With the books in hand: files count by their size. It makes the file new, too.
                os.truncate(fd, size)
            except BaseException:
                os.close(fd)
                raise
        return Slot(folder, name, fd, size)

    def _make_room(self, folder: NodeFolder, part: str, size: int) -> None:
        """Removes what nobody holds and has to go, or makes `part` from it if it fits."""
        files = [file for file in folder.files() if file.name != part]
        taken = size + sum(file.size for file in files)
        wanted = folder.status(part) is None
        eldest = time.time() - _IDLE_S
        for file in files:
            fits = wanted and size <= file.size <= 2 * size
            idle = file.used < eldest or file.name.endswith(PART)
            if not (fits or idle or taken > self._limit):
                continue
            try:
                fd = folder.open(file.name, fcntl.LOCK_EX)
            except (FileNotFoundError, BlockingIOError):
                continue
            with open(fd, "rb"):
                if fits:
                    folder.rename(file.name, fd, part)
                    wanted = False
                else:
                    folder.remove(file.name, fd)
                taken -= file.size
        if taken > self._limit:
            raise OSError(errno.EDQUOT, f"no room for {size} bytes within its {self._limit}")

    def _writing(self, name: str) -> _Writing | None:
        """What is known of the writer of that file."""
        try:
            found = self._joined().status(name + PART)
        except OSError:
            return None  # No folder: what comes next says so.
        return None if found is None else _Writing(found.st_ino, found.st_mtime_ns)


_caches: weakref.WeakValueDictionary[tuple[str, int | None], NodeCache] = (
    weakref.WeakValueDictionary()
)


def _check(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not 1 to 64 hexadecimal digits")


def _filled(slot: Slot, fill: Fill) -> Lease | None:
    try:
        fill(slot.buffer, slot.progress)
    except BaseException:
        slot.discard()
        raise
    return slot.commit()
