"""Files of a node's cache in one process's hands: a lease on a whole one, a slot for a new one.

A lock of `flock` belongs to what was opened, and `mmap` keeps a duplicate of the descriptor. So
a file stays locked as long as anything that was mapped by a lease or slot is in use.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
import weakref
from collections.abc import Callable
from typing import Any, NoReturn

from redis_state_sync.node_folder import NodeFolder, tell_once
from redis_state_sync.private_folder import try_lock

PART = ".part"
"""Ends the name of a file that is being written; its writer holds it exclusively."""


class OfThisProcess:
    """What makes sense in the process alone that made it."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} is of one process and can not be pickled")


class Lease(OfThisProcess):
    """A whole file, which stays as it is while this or any mapping made by it lives.

    Args:
        fd: Of the file, with a shared lock; the lease closes it.
        size: In bytes.
    """

    def __init__(self, fd: int, size: int) -> None:
        self.size = size
        self._fd = fd
        _when_dropped(self, os.close, fd)

    def fileno(self) -> int:
        """The descriptor."""
        return self._fd

    def map(self) -> memoryview:
        """Maps the file anew: shape ``(size,)``, uint8.

        What is written to it stays in it: neither another process nor another mapping sees it.

        Raises:
            OSError: If this process has no descriptor or address space left.
        """
        return memoryview(mmap.mmap(self._fd, self.size, access=mmap.ACCESS_COPY))


class Slot(OfThisProcess):
    """A new file, which others find once it is committed. Dropped before, it is discarded.

    Args:
        folder: Of the cache.
        name: Under which others are to find it.
        fd: Of the file ``<name>.part``, with an exclusive lock; the slot closes it.
        size: In bytes.

    Raises:
        OSError: If there is no memory for it.
    """

    buffer: memoryview
    """Shape ``(size,)``, uint8, shared memory. All of it is to be written, before the commit.

    What it holds at first is arbitrary: part of an older file, perhaps.
    """

    def __init__(self, folder: NodeFolder, name: str, fd: int, size: int) -> None:
        self._folder = folder
        self._name = name
        self._fd = fd
        self._size = size
        self._close = _when_dropped(self, os.close, fd)
        self._discard = _when_dropped(self, _discard, folder, name + PART, fd)
        try:
            # Before it is mapped: to write to a page that can not be had is a SIGBUS.
            os.posix_fallocate(fd, 0, size)
            self.buffer = memoryview(
                mmap.mmap(
                    fd,
                    size,
                    flags=mmap.MAP_SHARED | mmap.MAP_POPULATE,
                    prot=mmap.PROT_READ | mmap.PROT_WRITE,
                )
            )
        except BaseException:
            self.discard()
            raise

    def progress(self) -> None:
        """Tells those who wait for this file that its writer goes on."""
        os.utime(self._fd)

    def commit(self, name: str | None = None) -> Lease | None:
        """Lets others find the file.

        Should that fail, because somebody removed the folder, the lease is good all the same.

        Args:
            name: Under which others are to find it, if not under the one it was begun with: what
                is in it may be known only when it is whole.

        Returns:
            A lease; or None, and this is a slot still, if the process has no descriptor left.

        Raises:
            RuntimeError: If it was committed or discarded before, or in another process (a fork).
        """
        if os.getpid() != self._folder.pid:
            raise RuntimeError("this Slot was made in another process (a fork)")
        if not self._discard.alive:
            raise RuntimeError("this Slot was committed or discarded before")
        try:
            lease = Lease(os.dup(self._fd), self._size)
        except OSError as error:
            tell_once(self._folder.path, error)
            return None
        self._discard.detach()
        part = self._name + PART
        try:
            with self._folder.books():
                os.utime(self._fd)
                fcntl.flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
                self._folder.rename(part, self._fd, name or self._name)
                self._name = name or self._name
        except OSError as error:
            tell_once(self._folder.path, error)
            self._folder.remove(part, self._fd)
        return lease

    def reclaim(self) -> bool:
        """Makes a committed file a slot again, with the same buffer, unless others hold it.

        The caller sees to it that nobody in this process does.

        Returns:
            Whether it is a slot. If not, it is what it was.

        Raises:
            OSError: If somebody removed the file, or put another one in its place.
        """
        if os.getpid() != self._folder.pid:
            return False
        if self._discard.alive:
            return True  # It was never committed.
        name = secrets.token_hex(16)  # Somebody may be writing a file of the old one.
        with self._folder.books():
            # The lock that is there is lost if others hold theirs, and is had again: nobody
            # removes the file in between, for which the books are needed.
            if not try_lock(self._fd, fcntl.LOCK_EX):
                try_lock(self._fd, fcntl.LOCK_SH)
                return False
            self._folder.rename(self._name, self._fd, name + PART)
        self._name = name
        self._discard = _when_dropped(self, _discard, self._folder, name + PART, self._fd)
        return True

    def discard(self) -> None:
        """Gives the file up, unless it was committed or given up before."""
        self._discard()
        self._close()


def _when_dropped(
    owner: object, function: Callable[..., None], *args: Any
) -> weakref.finalize[..., Any]:
    """Not when the interpreter exits: a learner may still store its last state then."""
    finalizer = weakref.finalize(owner, function, *args)
    finalizer.atexit = False
    return finalizer


def _discard(folder: NodeFolder, part: str, fd: int) -> None:
    if os.getpid() == folder.pid:  # In a forked child the file is the parent's.
        folder.remove(part, fd)
