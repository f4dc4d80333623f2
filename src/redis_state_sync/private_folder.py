"""A folder that one user has for itself, where others may write to the folder above it."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Locked for well under a millisecond, but a debugger may have stopped who has locked it.
PATIENCE_S = 2.0
_LOOK_S = 0.001


def open_private(path: str) -> int | None:
    """Opens the folder, and makes it if it is not there.

    Returns:
        A descriptor, or None if somebody removed it at that moment.

    Raises:
        OSError: If it can not be used, or another user may have planted it: see its `strerror`.
    """
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass  # Owner and mode are looked at below.
    try:
        fd = os.open(path, _FLAGS)
    except FileNotFoundError:
        return None
    except NotADirectoryError as error:
        raise NotADirectoryError(error.errno, "it is a link or a file, not a folder") from None
    found = os.fstat(fd)
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid == os.geteuid() and not mode & 0o077:
        return fd
    os.close(fd)
    raise PermissionError(
        errno.EPERM,
        f"it belongs to user {found.st_uid} and has mode {mode:04o}, not to user {os.geteuid()} "
        "alone (0700): another user may have planted it",
    )


def is_at(folder: int, path: str) -> bool:
    """Whether the folder is still there."""
    try:
        return os.path.samestat(os.fstat(folder), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False


@contextmanager
def locked(folder: int, patience_s: float = PATIENCE_S) -> Iterator[None]:
    """Locks out all other threads and processes that lock it.

    Args:
        folder: A descriptor.
        patience_s: How long to wait for another one.

    Raises:
        TimeoutError: If another one does not let go.
    """
    with ExitStack() as stack:
        # Opened each time: a lock belongs to what was opened, so that this one is the thread's own.
        fd = os.open(".", _FLAGS, dir_fd=folder)
        stack.callback(os.close, fd)
        deadline = time.monotonic() + patience_s
        while not try_lock(fd, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                raise TimeoutError(
                    errno.ETIMEDOUT, "another process has locked it and does not let go"
                )
            time.sleep(_LOOK_S)
        # Closing alone would not do: a child that was forked meanwhile has it open as well.
        stack.callback(fcntl.flock, fd, fcntl.LOCK_UN)
        yield


def try_lock(fd: int, operation: int) -> bool:
    """Locks a file: LOCK_SH or LOCK_EX. False if others have locked it."""
    try:
        fcntl.flock(fd, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
