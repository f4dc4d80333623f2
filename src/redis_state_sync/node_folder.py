"""The folder of a node's cache: its files, their locks, and which processes use it.

Each process that uses the folder holds a shared lock on the file ``users``. Whoever can have it
for itself is the first, and removes what a crash has left, or the last, and removes everything.
The books are a lock on the folder itself: names are given and files are locked exclusively only
by whoever holds them. An exclusive lock that becomes a shared one is none for a moment, so that
takes the books as well.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import mmap
import os
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from redis_state_sync.private_folder import is_at, locked, open_private, try_lock

logger = logging.getLogger("redis_state_sync")

_USERS = "users"
_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
# How long a learner's training or a `sample` may wait for the books.
_PATIENCE_S = 0.2
_ATTEMPTS = 100  # Each one fails only if the last process removed the folder at that moment.

_told: set[tuple[str, int | None]] = set()


def tell_once(path: str, error: OSError) -> None:
    """Logs why the cache could not be used, once in this process for each kind of error."""
    if (path, error.errno) not in _told:
        _told.add((path, error.errno))
        logger.info(
            "node cache %s: %s. Without it each process fetches for itself; "
            "REDIS_STATE_SYNC_NODE_CACHE can name another folder to make it in",
            path,
            error.strerror or error,
        )


class File(NamedTuple):
    """What the folder holds.

    Args:
        name: Its name in the folder.
        size: The memory that it takes, in bytes: whole pages.
        used: When it was last found or written to, in seconds since the epoch.
    """

    name: str
    size: int
    used: float


class NodeFolder:
    """This process's use of the folder, which is made if it is not there.

    Args:
        path: Where it is; all above it exists.

    Raises:
        OSError: If it can not be used: see its `strerror`.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.pid = os.getpid()
        self._patience_s = _PATIENCE_S
        self._fd, self._users = _join(path)
        self._closing = weakref.finalize(self, _close, self._fd, self._users)
        # When the interpreter exits, threads may still use what is open.
        self._closing.atexit = False
        self._at_end = weakref.finalize(self, _leave, path, self._fd, self._users)
        _folders.add(self)

    def capacity(self) -> int:
        """Size of its file system, in bytes.

        Raises:
            OSError: If it has none.
        """
        system = os.fstatvfs(self._fd)
        if not system.f_blocks:
            raise OSError(errno.EINVAL, "its file system has no size: give the cache a limit")
        return system.f_blocks * system.f_frsize

    @contextmanager
    def books(self) -> Iterator[None]:
        """Holds the books.

        Raises:
            FileNotFoundError: If somebody removed the folder.
            TimeoutError: If another process does not give them back. It was waited for only if it
                has done so since the last time.
        """
        with ExitStack() as stack:
            try:
                stack.enter_context(locked(self._fd, self._patience_s))
            except TimeoutError:
                self._patience_s = 0.0
                raise
            self._patience_s = _PATIENCE_S
            if not is_at(self._fd, self.path):
                raise FileNotFoundError(errno.ENOENT, "somebody removed it")
            yield

    def files(self) -> list[File]:
        """All of its files, the one that was not used for longest first."""
        return _files(self._fd)

    def status(self, name: str) -> os.stat_result | None:
        """Of a file, or None if there is none of that name."""
        try:
            return os.stat(name, dir_fd=self._fd, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def open(self, name: str, operation: int) -> int:
        """Opens and locks a file that is there: LOCK_SH, or with the books LOCK_EX.

        Returns:
            A descriptor.

        Raises:
            FileNotFoundError: If there is none.
            BlockingIOError: If others hold it.
        """
        fd = os.open(name, _FLAGS, dir_fd=self._fd)
        try:
            if not try_lock(fd, operation):
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), name)
            if not self._is(name, fd):  # It was removed or renamed before the lock.
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def is_held(self, name: str) -> bool:
        """Whether there is such a file and somebody has locked it. Takes the books."""
        try:
            os.close(self.open(name, fcntl.LOCK_EX))
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    def create(self, name: str) -> int:
        """Makes a file that is not there, and locks it exclusively. Takes the books."""
        fd = os.open(name, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=self._fd)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return fd

    def rename(self, name: str, fd: int, to: str) -> None:
        """Gives a file that the caller has locked another name. Takes the books.

        Raises:
            FileNotFoundError: If somebody removed the file.
        """
        if not self._is(name, fd):
            raise FileNotFoundError(errno.ENOENT, f"somebody removed {name} from it")
        os.rename(name, to, src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def remove(self, name: str, fd: int) -> None:
        """Removes a file that the caller has locked exclusively, unless somebody has before."""
        if self._is(name, fd):
            try:
                os.unlink(name, dir_fd=self._fd)
            except FileNotFoundError:
                pass  # At this very moment.

    def _is(self, name: str, fd: int) -> bool:
        there = self.status(name)
        return there is not None and os.path.samestat(os.fstat(fd), there)


def _join(path: str) -> tuple[int, int]:
    for _ in range(_ATTEMPTS):
        folder = open_private(path)
        if folder is None:
            continue
        try:
            with locked(folder):
                if is_at(folder, path):
                    return folder, _use(folder)
        except BaseException:
            os.close(folder)
            raise
        os.close(folder)
    raise TimeoutError(errno.ETIMEDOUT, "others remove it again and again")


def _use(folder: int) -> int:
    users = os.open(_USERS, _FLAGS | os.O_CREAT, 0o600, dir_fd=folder)
    try:
        if try_lock(users, fcntl.LOCK_EX):
            _clear(folder)
        fcntl.flock(users, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BaseException:
        os.close(users)
        raise
    return users


def _leave(path: str, folder: int, users: int) -> None:
    try:
        with locked(folder):
            if try_lock(users, fcntl.LOCK_EX):
                _clear(folder)
                os.unlink(_USERS, dir_fd=folder)
                if is_at(folder, path):
                    os.rmdir(path)
    except OSError:
        pass  # Nobody is left to tell; whoever comes next is the first and tidies up.


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _clear(folder: int) -> None:
    for file in _files(folder):
        os.unlink(file.name, dir_fd=folder)


def _files(folder: int) -> list[File]:
    files = []
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                found = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue  # Its writer has just given it up, for which nobody needs the books.
            if entry.name != _USERS:
                size = found.st_size + -found.st_size % mmap.PAGESIZE
                files.append(File(entry.name, size, found.st_mtime))
    return sorted(files, key=lambda file: file.used)


_folders: weakref.WeakSet[NodeFolder] = weakref.WeakSet()


def _in_forked_child() -> None:
    """The locks are the parent's: the child joins for itself if it uses the folder, too."""
    for folder in list(_folders):
        if folder._at_end.detach():
            folder._closing()
    _folders.clear()


os.register_at_fork(after_in_child=_in_forked_child)
