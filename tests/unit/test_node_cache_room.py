"""The memory of a node's cache: bounded, used again, and never taken from anybody who uses it."""

from __future__ import annotations

import errno
import logging
import mmap
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from redis_state_sync.leases import Lease
from redis_state_sync.node_cache import NodeCache, open_node_cache
from redis_state_sync.private_folder import try_lock
from tests.unit.forking import end_of, start_child
from tests.unit.node_files import (
    KIB,
    content,
    files,
    holds,
    opened,
    own_folder,
    wait_for,
    written,
)

SIZE = 64 * KIB
LIMIT = 4 * SIZE
PAGE = mmap.PAGESIZE


@pytest.fixture
def cache(shared_memory: Path) -> NodeCache:
    return opened(shared_memory, LIMIT)


def inode(folder: Path, name: str) -> int:
    return (own_folder(folder) / name).stat().st_ino


def age(folder: Path, name: str, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(own_folder(folder) / name, (then, then))


def test_memory_is_bounded_under_many_versions(cache: NodeCache, shared_memory: Path) -> None:
    """Versions of all sizes that come for ever take no more than the limit, and none is wrong."""
    held: list[Lease] = []
    for number in range(300):
        name, size = f"{number:x}", 1 + number * 7919 % SIZE
        slot = cache.slot(name, size)
        assert slot is not None
        slot.buffer[:] = content(name, size)
        held = [*held[-1:], slot.commit()]
        blocks = sum(path.stat().st_blocks * 512 for path in own_folder(shared_memory).iterdir())
        assert blocks <= LIMIT
        assert holds(held[-1], name)
        assert holds(held[0], f"{max(number - 1, 0):x}")


@pytest.mark.parametrize("holder", ["lease", "mapping", "part of a mapping", "buffer"])
def test_what_is_held_stays(cache: NodeCache, shared_memory: Path, holder: str) -> None:
    """A file is neither removed nor written over while a lease or anything mapped is alive."""
    slot = cache.slot("a", SIZE)
    assert slot is not None
    slot.buffer[:] = content("a", SIZE)
    lease = slot.commit()
    held: object = None
    if holder == "lease":
        held = lease
    elif holder == "mapping":
        held = lease.map()
    elif holder == "part of a mapping":
        held = lease.map()[5:10]
    else:
        held = slot.buffer
    del lease, slot
    for number in range(10):
        written(cache, f"b{number}", 2 * SIZE)
        assert cache.slot("c", LIMIT) is None
    assert holds(cache.find("a", SIZE), "a")
    if isinstance(held, memoryview):
        assert held in (content("a", SIZE), content("a", SIZE)[5:10])
    del held
    assert cache.slot("c", LIMIT) is not None
    assert files(shared_memory) == []


def test_another_process_holds_it(cache: NodeCache, shared_memory: Path) -> None:
    """What another process has mapped stays, until that process ends, be it by a kill."""
    written(cache, "a", SIZE)
    ready = shared_memory / "ready"

    def hold() -> None:
        lease = cache.find("a", SIZE)
        assert lease is not None
        mapping = lease.map()
        del lease
        ready.touch()
        time.sleep(60)
        assert mapping

    child = start_child(hold)
    wait_for(ready.exists)
    written(cache, "b", SIZE)
    written(cache, "c", SIZE)
    assert holds(cache.find("a", SIZE), "a")
    os.kill(child, 9)
    end_of(child)
    written(cache, "d", SIZE)
    written(cache, "e", SIZE)
    assert cache.find("a", SIZE) is None


def test_superseded_memory_is_used_again(cache: NodeCache, shared_memory: Path) -> None:
    """A file that fits and that nobody holds becomes the next one; what is held does not."""
    old = written(cache, "a", SIZE)
    first = inode(shared_memory, "a")
    lease = written(cache, "b", SIZE)
    assert inode(shared_memory, "b") != first
    del old
    third = written(cache, "c", SIZE - 5000)
    assert inode(shared_memory, "c") == first
    assert files(shared_memory) == ["b", "c"]
    assert (holds(lease, "b"), holds(third, "c")) == (True, True)


def test_much_larger_memory_is_not_used_again(cache: NodeCache, shared_memory: Path) -> None:
    """A small file does not take the memory of one more than twice its size while there is room."""
    written(cache, "a", SIZE)
    small = written(cache, "b", SIZE // 2 - 1)
    assert files(shared_memory) == ["a", "b"]
    assert holds(small, "b")


def test_the_one_unused_for_longest_goes_first(cache: NodeCache, shared_memory: Path) -> None:
    """Of what nobody holds, that goes first which was not found for longest."""
    # Sizes grow, so that none fits into an older one's memory.
    written(cache, "a", SIZE)
    written(cache, "b", SIZE + PAGE)
    age(shared_memory, "a", 30)
    age(shared_memory, "b", 20)
    assert holds(cache.find("a", SIZE), "a")
    written(cache, "c", LIMIT - 2 * SIZE)
    assert files(shared_memory) == ["a", "c"]


def test_idle_files_go(cache: NodeCache, shared_memory: Path) -> None:
    """What nobody has held or found for a minute is removed by the next writer, room or not."""
    held = written(cache, "a", KIB)
    written(cache, "b", KIB)
    age(shared_memory, "a", 3600)
    age(shared_memory, "b", 3600)
    written(cache, "c", SIZE)
    assert files(shared_memory) == ["a", "c"]
    assert holds(held, "a")


def test_a_file_that_took_long(cache: NodeCache, shared_memory: Path) -> None:
    """A file is as new as its commit, however long its writer took."""
    slot = cache.slot("a", KIB)
    assert slot is not None
    age(shared_memory, "a.part", 3600)
    slot.commit()
    del slot
    written(cache, "b", SIZE)
    assert files(shared_memory) == ["a", "b"]


def test_no_more_goes_than_needed(cache: NodeCache, shared_memory: Path) -> None:
    """Of several files that would fit, one becomes the next one."""
    held = [written(cache, name, SIZE) for name in "abc"]
    held.clear()
    written(cache, "d", SIZE)
    assert files(shared_memory) == ["b", "c", "d"]


def test_a_file_that_vanishes(cache: NodeCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that its writer gives up while another one looks for room is in nobody's way."""
    slot = cache.slot("a", SIZE)
    assert slot is not None
    scandir = os.scandir

    @contextmanager
    def late(folder: int) -> Iterator[list[os.DirEntry[str]]]:
        with scandir(folder) as entries:
            found = list(entries)
        slot.discard()
        yield found

    monkeypatch.setattr("redis_state_sync.node_folder.os.scandir", late)
    assert cache.slot("b", SIZE) is not None


def test_a_file_that_goes_while_it_is_looked_at(
    cache: NodeCache, shared_memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who opens a file whose memory becomes another's before it is locked does not find it."""
    written(cache, "a", SIZE)
    memory = inode(shared_memory, "a")

    def late(fd: int, operation: int) -> bool:
        monkeypatch.undo()
        written(cache, "b", SIZE)
        return try_lock(fd, operation)

    monkeypatch.setattr("redis_state_sync.node_folder.try_lock", late)
    assert cache.find("a", SIZE) is None
    assert inode(shared_memory, "b") == memory


def test_more_than_the_limit(cache: NodeCache, shared_memory: Path) -> None:
    """What is larger than the limit has no slot, and nothing has to go for it."""
    written(cache, "a", SIZE)
    assert cache.slot("b", LIMIT + 1) is None
    assert files(shared_memory) == ["a"]
    assert cache.slot("b", LIMIT) is not None


def test_no_room_beside_what_is_held(cache: NodeCache) -> None:
    """There is no slot if what is held leaves no room, and one as soon as it is let go."""
    held: list[object] = [written(cache, name, SIZE) for name in "abc"]
    held.append(cache.slot("d", SIZE))
    assert held[-1] is not None
    assert cache.slot("e", SIZE) is None
    held.pop(0)
    assert cache.slot("e", SIZE) is not None


def test_the_writing_counts(cache: NodeCache) -> None:
    """A file counts from the moment that its slot is given out, before anything is in it."""
    slots = [cache.slot(f"{number:x}", SIZE) for number in range(5)]
    assert [slot is not None for slot in slots] == [True] * 4 + [False]


def test_nothing_goes_for_nothing(cache: NodeCache, shared_memory: Path) -> None:
    """Whoever asks for a file that another one is writing has nobody's file removed."""
    slot = cache.slot("a", SIZE)
    written(cache, "b", SIZE)
    written(cache, "c", SIZE + PAGE)
    age(shared_memory, "b", 3600)
    for _ in range(3):
        assert cache.slot("a", SIZE) is None
    assert files(shared_memory) == ["a.part", "b", "c"]
    assert slot is not None


def test_a_dead_writers_memory(cache: NodeCache, shared_memory: Path) -> None:
    """What a killed process was writing is removed by the next writer, or goes on as new."""
    ready = shared_memory / "ready"

    def die() -> None:
        slots = [cache.slot(name, SIZE) for name in "ab"]
        assert all(slots)
        ready.touch()
        time.sleep(60)

    child = start_child(die)
    wait_for(ready.exists)
    assert cache.slot("a", SIZE) is None
    os.kill(child, 9)
    end_of(child)
    assert files(shared_memory) == ["a.part", "b.part"]
    left = inode(shared_memory, "a.part")
    age(shared_memory, "a.part", 3600)
    slot = cache.slot("a", SIZE)
    assert slot is not None
    assert time.time() - (own_folder(shared_memory) / "a.part").stat().st_mtime < 1800
    slot.buffer[:] = content("a", SIZE)
    lease = slot.commit()
    assert files(shared_memory) == ["a"]
    assert inode(shared_memory, "a") == left
    assert holds(lease, "a")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EFBIG, errno.ENOMEM])
def test_a_full_file_system(
    cache: NodeCache,
    shared_memory: Path,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Without memory there is no slot, no trace of it, and one line in the log."""

    def full(fd: int, start: int, size: int) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch, caplog.at_level(logging.INFO, "redis_state_sync"):
        patch.setattr("redis_state_sync.leases.os.posix_fallocate", full)
        assert cache.slot("a", SIZE) is None
        assert cache.slot("b", SIZE) is None
    assert files(shared_memory) == []
    (line,) = caplog.messages
    assert os.strerror(code) in line
    assert "REDIS_STATE_SYNC_NODE_CACHE" in line
    assert holds(written(cache, "a", SIZE), "a")


def test_half_of_the_file_system(shared_memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless told otherwise the cache takes half of its file system: 32 of 64 MB, say."""
    small = SimpleNamespace(f_blocks=64, f_frsize=KIB)
    monkeypatch.setattr("redis_state_sync.node_folder.os.fstatvfs", lambda fd: small)
    cache = opened(shared_memory)
    assert cache.slot("a", 32 * KIB + 1) is None
    assert cache.slot("a", 32 * KIB) is not None


def test_a_file_system_without_a_size(
    shared_memory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where half of the file system is nothing, there is no cache without a limit."""
    monkeypatch.setattr(
        "redis_state_sync.node_folder.os.fstatvfs", lambda fd: SimpleNamespace(f_blocks=0)
    )
    with caplog.at_level(logging.INFO, "redis_state_sync"):
        assert open_node_cache(str(shared_memory)) is None
    assert "give the cache a limit" in caplog.text
    assert opened(shared_memory, LIMIT).slot("a", SIZE) is not None


def test_no_limit_no_cache(shared_memory: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A limit of 0 turns the cache off, without a word and without a trace."""
    with caplog.at_level(logging.INFO, "redis_state_sync"):
        assert open_node_cache(str(shared_memory), 0) is None
    assert caplog.messages == []
    assert list(shared_memory.iterdir()) == []
