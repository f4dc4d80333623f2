"""The folder of a node's cache: whose it is, and what becomes of it."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from redis_state_sync.node_cache import open_node_cache
from redis_state_sync.private_folder import locked
from tests.unit.node_files import (
    KIB,
    content,
    files,
    filler,
    holds,
    opened,
    own_folder,
    written,
)

SIZE = 64 * KIB


def refused(folder: Path, caplog: pytest.LogCaptureFixture) -> str:
    """Why there is no cache there: one line of the log, however often it is opened."""
    with caplog.at_level(logging.INFO, "redis_state_sync"):
        assert open_node_cache(str(folder)) is None
        assert open_node_cache(str(folder)) is None
    (record,) = caplog.records
    assert record.levelno == logging.INFO
    line = record.getMessage()
    assert str(own_folder(folder)) in line
    assert "each process fetches for itself" in line
    assert "REDIS_STATE_SYNC_NODE_CACHE" in line
    return line


def test_a_planted_link(shared_memory: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A link in the place of the folder is not followed, wherever it leads."""
    target = shared_memory / "target"
    target.mkdir(mode=0o700)
    own_folder(shared_memory).symlink_to(target)
    assert "is a link" in refused(shared_memory, caplog)
    assert list(target.iterdir()) == []


def test_a_planted_file(shared_memory: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A file in the place of the folder is left alone."""
    own_folder(shared_memory).write_text("mine")
    assert "not a folder" in refused(shared_memory, caplog)
    assert own_folder(shared_memory).read_text() == "mine"


@pytest.mark.parametrize("mode", [0o710, 0o720, 0o701, 0o777, 0o1777])
def test_a_folder_for_others(
    shared_memory: Path, caplog: pytest.LogCaptureFixture, mode: int
) -> None:
    """A folder that others may look into or write to is not used."""
    own_folder(shared_memory).mkdir()
    own_folder(shared_memory).chmod(mode)
    assert f"{mode:04o}" in refused(shared_memory, caplog)
    assert files(shared_memory) == []


def test_a_folder_of_another_user(
    shared_memory: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that another user has planted under this user's name is not used."""
    user = os.geteuid() + 1
    monkeypatch.setattr("os.geteuid", lambda: user)
    own_folder(shared_memory).mkdir(mode=0o700)
    assert "another user may have planted it" in refused(shared_memory, caplog)
    assert files(shared_memory) == []


def test_no_such_folder(shared_memory: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is made above the cache's own folder."""
    assert os.strerror(errno.ENOENT) in refused(shared_memory / "none", caplog)
    assert list(shared_memory.iterdir()) == []


def test_a_read_only_file_system(
    shared_memory: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing can be written there is no cache."""

    def mkdir(path: str, mode: int) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    with monkeypatch.context() as patch:
        patch.setattr("redis_state_sync.private_folder.os.mkdir", mkdir)
        assert os.strerror(errno.EROFS) in refused(shared_memory, caplog)


def test_no_locks(
    shared_memory: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where files can not be locked there is no cache."""

    def flock(fd: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    with monkeypatch.context() as patch:
        patch.setattr("redis_state_sync.private_folder.fcntl.flock", flock)
        assert os.strerror(errno.ENOLCK) in refused(shared_memory, caplog)


def test_another_operating_system(
    shared_memory: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is a cache on Linux alone."""
    monkeypatch.setattr("sys.platform", "darwin")
    assert "Linux" in refused(shared_memory, caplog)
    assert list(shared_memory.iterdir()) == []


def test_the_last_one_goes_as_one_comes(
    shared_memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that its last user removes before it is opened, or locked, is made again."""
    own = own_folder(shared_memory)
    moments: list[str] = []

    def mkdir(path: str, mode: int) -> None:
        make(path, mode)
        if "opened" not in moments:
            moments.append("opened")
            own.rmdir()

    @contextmanager
    def late(folder: int, *patience: float) -> Iterator[None]:
        if "locked" not in moments:
            moments.append("locked")
            own.rmdir()
        with locked(folder, *patience):
            yield

    make = os.mkdir
    monkeypatch.setattr("redis_state_sync.private_folder.os.mkdir", mkdir)
    monkeypatch.setattr("redis_state_sync.node_folder.locked", late)
    cache = opened(shared_memory)
    assert moments == ["opened", "locked"]
    assert holds(written(cache, "a", SIZE), "a")


def test_a_folder_that_never_stays(
    shared_memory: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the folder is removed again and again there is no cache, in the end."""

    def mkdir(path: str, mode: int) -> None:
        pass

    monkeypatch.setattr("redis_state_sync.private_folder.os.mkdir", mkdir)
    assert "again and again" in refused(shared_memory, caplog)


def test_somebody_removes_the_folder(shared_memory: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Without its folder a cache goes on: with what it holds, and in a new folder."""
    cache = opened(shared_memory)
    lease = written(cache, "a", SIZE)
    slot = cache.slot("b", SIZE)
    assert slot is not None
    with caplog.at_level(logging.INFO, "redis_state_sync"):
        own_folder(shared_memory).rename(shared_memory / "away")
        assert cache.slot("c", SIZE) is None
        slot.buffer[:] = content("b", SIZE)
        assert holds(slot.commit(), "b")
    assert "somebody removed it" in caplog.text
    assert holds(lease, "a")
    assert holds(written(cache, "c", SIZE), "c")
    assert files(shared_memory) == ["c"]


def test_somebody_removes_the_files(shared_memory: Path) -> None:
    """Without its name, what is being written is good for its writer and never mixed up."""
    cache = opened(shared_memory)
    slot = cache.slot("a", SIZE)
    assert slot is not None
    (own_folder(shared_memory) / "a.part").unlink()
    other = cache.slot("a", SIZE)
    assert other is not None
    slot.buffer[:] = content("a", SIZE)
    assert holds(slot.commit(), "a")
    assert files(shared_memory) == ["a.part"]
    other.buffer[:] = content("a", SIZE)
    assert holds(other.commit(), "a")
    assert holds(cache.find("a", SIZE), "a")


def test_who_keeps_the_books(
    shared_memory: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that stops with the books in hand costs the others the cache, not their lives."""
    monkeypatch.setattr("redis_state_sync.node_folder._PATIENCE_S", 0.1)
    cache = opened(shared_memory)
    lease = written(cache, "a", SIZE)
    slot = cache.slot("b", SIZE)
    assert slot is not None
    slot.buffer[:] = content("b", SIZE)
    books = os.open(own_folder(shared_memory), os.O_RDONLY)
    fcntl.flock(books, fcntl.LOCK_EX)
    with caplog.at_level(logging.INFO, "redis_state_sync"):
        assert cache.slot("c", SIZE) is None
        assert cache.fetch("c", SIZE, filler("c", SIZE), deadline=0, stall=0) is None
        assert holds(slot.commit(), "b")
    assert "does not let go" in caplog.text
    assert holds(cache.find("a", SIZE), "a")
    assert holds(lease, "a")
    assert files(shared_memory) == ["a"]
    os.close(books)
    assert holds(written(cache, "c", SIZE), "c")


def test_no_descriptors_left(shared_memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that can open no more files goes on without the cache."""
    cache = opened(shared_memory)
    written(cache, "a", SIZE)

    def full(*args: object, **more: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr("redis_state_sync.node_folder.os.open", full)
        assert cache.find("a", SIZE) is None
        assert cache.slot("b", SIZE) is None
    assert holds(cache.find("a", SIZE), "a")
