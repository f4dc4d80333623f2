"""Files of a node's cache: who finds what, and what is in it."""

from __future__ import annotations

import copy
import fcntl
import os
import pickle
import time
from pathlib import Path

import pytest

from redis_state_sync.node_cache import FOLDER_ENV, NodeCache, open_node_cache
from tests.unit.forking import in_child
from tests.unit.node_files import KIB, content, files, holds, opened, own_folder, written

SIZE = 100 * KIB + 1


@pytest.fixture
def cache(shared_memory: Path) -> NodeCache:
    return opened(shared_memory)


def test_what_is_committed_is_found(cache: NodeCache) -> None:
    """A committed file is found with its size and bytes, here and in other processes."""
    lease = written(cache, "a", SIZE)
    assert (lease.size, lease.map().nbytes, lease.map().format) == (SIZE, SIZE, "B")
    assert holds(lease, "a")
    assert holds(cache.find("a", SIZE), "a")
    assert in_child(lambda: holds(cache.find("a", SIZE), "a") or 1 / 0) == 0


def test_what_is_not_there(cache: NodeCache) -> None:
    """Names that nobody has written, and sizes that a file does not have, are not found."""
    written(cache, "a", SIZE)
    assert cache.find("b", SIZE) is None
    assert cache.find("a", SIZE - 1) is None
    assert cache.find("a", SIZE + 1) is None


def test_a_file_of_the_wrong_size_is_replaced(cache: NodeCache) -> None:
    """A file of another size than asked for can be written anew; its holders keep the old one."""
    old = written(cache, "a", SIZE)
    new = written(cache, "a", SIZE + 1)
    assert holds(old, "a")
    assert holds(new, "a")
    assert cache.find("a", SIZE) is None
    assert holds(cache.find("a", SIZE + 1), "a")


def test_a_mapping_is_private(cache: NodeCache) -> None:
    """What is written to a mapping is seen neither by another one nor by another process."""
    lease = written(cache, "a", SIZE)
    earlier, mine = lease.map(), lease.map()
    assert not mine.readonly
    mine[:] = bytes(SIZE)
    assert bytes(mine) == bytes(SIZE)
    for other in (earlier, lease.map()):
        assert other == content("a", SIZE)
    assert in_child(lambda: holds(cache.find("a", SIZE), "a") or 1 / 0) == 0


def test_what_is_not_committed_is_not_found(cache: NodeCache, shared_memory: Path) -> None:
    """A file that is being written is nobody else's; given up or dropped, it is gone."""
    slot = cache.slot("a", SIZE)
    assert slot is not None
    assert cache.find("a", SIZE) is None
    slot.discard()
    slot.discard()
    assert files(shared_memory) == []
    slot = cache.slot("a", SIZE)
    assert slot is not None
    buffer = slot.buffer
    del slot
    assert files(shared_memory) == []
    buffer[:] = content("a", SIZE)  # Still memory, of this process alone.
    assert cache.find("a", SIZE) is None


def test_a_commit_is_once(cache: NodeCache) -> None:
    """A slot can not be committed twice or after it was discarded; to discard later is nothing."""
    slot = cache.slot("a", SIZE)
    assert slot is not None
    slot.buffer[:] = content("a", SIZE)
    lease = slot.commit()
    with pytest.raises(RuntimeError, match="committed or discarded before"):
        slot.commit()
    slot.discard()
    assert holds(cache.find("a", SIZE), "a")
    del lease
    slot = cache.slot("b", SIZE)
    assert slot is not None
    slot.discard()
    with pytest.raises(RuntimeError, match="committed or discarded before"):
        slot.commit()
    assert cache.find("b", SIZE) is None


def test_one_writer(cache: NodeCache) -> None:
    """Nobody gets a slot for a file that another one is writing or has written: one commits."""
    slot = cache.slot("a", SIZE)
    assert slot is not None
    assert cache.slot("a", SIZE) is None
    assert in_child(lambda: cache.slot("a", SIZE) and 1 / 0) == 0
    assert cache.slot("b", SIZE) is not None
    slot.buffer[:] = content("a", SIZE)
    lease = slot.commit()
    assert cache.slot("a", SIZE) is None
    assert in_child(lambda: cache.slot("a", SIZE) and 1 / 0) == 0
    assert holds(lease, "a")


@pytest.mark.parametrize("name", ["", "A", "g", "../a", "a/b", "a.part", "users", "0" * 65, "a\n"])
def test_names(cache: NodeCache, name: str) -> None:
    """Whatever is no short row of hexadecimal digits is refused, before it is a path."""
    with pytest.raises(ValueError, match="hexadecimal"):
        cache.find(name, SIZE)
    with pytest.raises(ValueError, match="hexadecimal"):
        cache.slot(name, SIZE)
    with pytest.raises(ValueError, match="hexadecimal"):
        cache.fetch(name, SIZE, lambda buffer, progress: None, deadline=0, stall=0)


def test_the_longest_name(cache: NodeCache) -> None:
    """A name may have 64 digits."""
    assert holds(written(cache, "f" * 64, SIZE), "f" * 64)


@pytest.mark.parametrize("size", [0, -1])
def test_empty_files(cache: NodeCache, shared_memory: Path, size: int) -> None:
    """There are no empty files: they are never found and never written."""
    assert cache.find("a", size) is None
    assert cache.slot("a", size) is None
    assert cache.fetch("a", size, lambda buffer, progress: None, deadline=0, stall=0) is None
    assert files(shared_memory) == []


def test_nothing_of_it_travels(cache: NodeCache) -> None:
    """Cache, slot and lease can be neither pickled nor copied."""
    slot = cache.slot("a", SIZE)
    for thing in (cache, slot, written(cache, "b", SIZE)):
        with pytest.raises(TypeError, match="of one process"):
            pickle.dumps(thing)
        with pytest.raises(TypeError, match="of one process"):
            copy.copy(thing)


def test_one_object(cache: NodeCache, shared_memory: Path) -> None:
    """Whoever opens the same cache gets the same object; another folder or limit is another."""
    assert opened(shared_memory) is cache
    assert opened(shared_memory, 1 << 20) is not cache
    (shared_memory / "other").mkdir()
    assert opened(shared_memory / "other") is not cache


def test_the_environment_names_the_folder(
    shared_memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache is where the environment says, unless the caller says so."""
    monkeypatch.setenv(FOLDER_ENV, str(shared_memory))
    cache = open_node_cache()
    assert cache is not None
    assert own_folder(shared_memory).exists()
    (shared_memory / "other").mkdir()
    other = opened(shared_memory / "other")
    assert other is not cache
    assert own_folder(shared_memory / "other").exists()


def test_only_its_user_may_look(shared_memory: Path) -> None:
    """Folder and files are their user's alone, whatever the umask."""
    before = os.umask(0)
    try:
        cache = opened(shared_memory)
        written(cache, "a", SIZE)
    finally:
        os.umask(before)
    own = own_folder(shared_memory)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (own, *own.iterdir())}
    assert modes == {own.name: 0o700, "users": 0o600, "a": 0o600}


def test_somebody_who_keeps_the_books(cache: NodeCache, shared_memory: Path) -> None:
    """A process that was stopped with the books in hand is waited for once, then no more."""
    written(cache, "a", SIZE)
    fd = os.open(own_folder(shared_memory), os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    started = time.monotonic()
    assert cache.slot("b", SIZE) is None
    once = time.monotonic() - started
    for name in ("c", "d", "e", "f", "10", "11", "12"):
        assert cache.slot(name, SIZE) is None
    assert time.monotonic() - started < 2 * once
    assert holds(cache.find("a", SIZE), "a")  # Finding needs no books.
    os.close(fd)
    for name in "bc":
        written(cache, name, SIZE)
