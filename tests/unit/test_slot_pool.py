"""A learner's slots in the node's cache: when one is used again, and when it is not."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from redis_state_sync.leases import Slot
from redis_state_sync.node_cache import NodeCache
from redis_state_sync.slot_pool import SlotPool
from tests.unit.forking import in_child
from tests.unit.node_files import KIB, files, opened, own_folder

SIZE = 64 * KIB


@pytest.fixture
def cache(shared_memory: Path) -> NodeCache:
    return opened(shared_memory)


@pytest.fixture
def pool(cache: NodeCache) -> SlotPool:
    return SlotPool(cache)


def taken(pool: SlotPool, fill: int = 0) -> tuple[Any, Slot]:
    found = pool.take(SIZE)
    assert found is not None
    found[0][:] = fill
    return found


def files_in_use(folder: Path) -> int:
    """How many files of the cache this process has mapped, removed ones as well."""
    return Path("/proc/self/maps").read_text().count(f" {own_folder(folder)}/")


def test_without_a_cache() -> None:
    """Where there is no cache there are no slots, and no error."""
    pool = SlotPool(None)
    assert pool.take(SIZE) is None
    pool.close()


def test_no_room(shared_memory: Path) -> None:
    """Without room there is no slot; when what is in use is gone, there is one again."""
    pool = SlotPool(opened(shared_memory, 2 * SIZE))
    held = [taken(pool), taken(pool)]
    assert pool.take(SIZE) is None
    del held[0]
    assert taken(pool)


def test_a_slot_that_was_never_committed(pool: SlotPool, shared_memory: Path) -> None:
    """Memory of a state that was replaced before it was stored is written to at once."""
    array, slot = taken(pool)
    del array
    assert taken(pool)[1] is slot
    assert len(files(shared_memory)) == 1


def test_a_committed_slot(pool: SlotPool, cache: NodeCache, shared_memory: Path) -> None:
    """A committed file that nobody needs is not found any more once it is written to again."""
    array, slot = taken(pool, 1)
    slot.commit("a")
    assert cache.find("a", SIZE)
    del array
    array, again = taken(pool, 2)
    assert again is slot
    assert cache.find("a", SIZE) is None
    again.commit("b")
    found = cache.find("b", SIZE)
    assert found is not None
    assert found.map() == array.tobytes() == bytes([2]) * SIZE
    assert files(shared_memory) == ["b"]


def test_a_slot_that_a_mapping_holds(pool: SlotPool, cache: NodeCache) -> None:
    """What a reader has mapped is never written to, and is again when the mapping is gone."""
    array, slot = taken(pool, 1)
    slot.commit("a")
    lease = cache.find("a", SIZE)
    assert lease is not None
    view = np.frombuffer(lease.map(), np.uint8)[5:]
    del array, lease
    others = [taken(pool, n) for n in range(2, 6)]
    assert slot not in [other for _, other in others]
    assert (view == 1).all()
    del view
    assert taken(pool)[1] is slot
    assert [array[0] for array, _ in others] == [2, 3, 4, 5]


def test_a_slot_that_could_not_be_reclaimed(shared_memory: Path) -> None:
    """A file that readers held just then stays the learner's: nobody else removes it after them."""
    pool, others = SlotPool(opened(shared_memory)), opened(shared_memory, 2 * SIZE)
    array, slot = taken(pool, 1)
    slot.commit("a")
    lease = others.find("a", SIZE)
    del array
    held = taken(pool, 2)
    assert held[1] is not slot
    del lease
    assert others.slot("b", SIZE) is None
    assert "a" in files(shared_memory)
    assert taken(pool, 3)[1] is slot


def test_a_reader_that_forked(pool: SlotPool, cache: NodeCache) -> None:
    """What a reader's child has inherited stays as it is, also when the reader has let go."""
    array, slot = taken(pool, 1)
    slot.commit("a")
    del array
    lease = cache.find("a", SIZE)
    assert lease is not None
    view = lease.map()
    go_read, go_write = os.pipe()
    child = os.fork()
    if not child:
        os.read(go_read, 1)
        os._exit(0 if view == bytes([1]) * SIZE else 1)
    del lease, view
    assert slot not in [taken(pool, 7)[1] for _ in range(3)]
    os.write(go_write, b".")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    os.close(go_read)
    os.close(go_write)


def test_in_a_forked_child(pool: SlotPool) -> None:
    """A child that inherits a pool gets nothing that its parent has."""
    array, slot = taken(pool, 1)
    slot.commit("a")
    del array

    def child() -> None:
        found = pool.take(SIZE)
        assert found is None or found[1] is not slot
        if found is not None:
            found[0][:] = 9

    assert in_child(child) == 0
    again, _ = taken(pool, 3)
    assert (again == 3).all()


def test_a_name_that_exists(pool: SlotPool, cache: NodeCache) -> None:
    """The same bytes may be committed once more; who holds the older file keeps it."""
    first, slot = taken(pool, 1)
    slot.commit("a")
    older = cache.find("a", SIZE)
    assert older is not None
    view = older.map()
    second, other = taken(pool, 1)
    other.commit("a")
    newer = cache.find("a", SIZE)
    assert newer is not None
    assert os.fstat(newer.fileno()).st_ino != os.fstat(older.fileno()).st_ino
    assert view == newer.map() == first.tobytes() == second.tobytes()


def test_a_file_that_was_replaced(pool: SlotPool, cache: NodeCache, shared_memory: Path) -> None:
    """Memory that can not be found under its name any more is given back at once."""
    for _ in range(20):  # Two contents in turn, each time while a reader has the older file.
        first, slot = taken(pool, 1)
        slot.commit("a")
        lease = cache.find("a", SIZE)
        second, other = taken(pool, 1)
        other.commit("a")
        del first, slot, second, other, lease
    assert files_in_use(shared_memory) <= 3


@pytest.mark.parametrize("how", ["folder", "files"])
def test_a_cache_that_is_wiped(pool: SlotPool, shared_memory: Path, how: str) -> None:
    """When somebody removes the folder or all in it, the pool goes on in a new one."""
    for turn in range(6):
        found = pool.take(SIZE)
        if found is None:
            continue  # It noticed just now.
        found[0][:] = turn
        found[1].commit(f"{turn:x}")
        del found
        if turn in (1, 3):
            if how == "folder":
                shutil.rmtree(own_folder(shared_memory))
            else:
                for path in own_folder(shared_memory).iterdir():
                    path.unlink()
    assert files(shared_memory)
    assert files_in_use(shared_memory) <= 2


def test_close(pool: SlotPool, cache: NodeCache, shared_memory: Path) -> None:
    """A closed pool hands out nothing; what is in use, or committed, is as it was."""
    array, slot = taken(pool, 1)
    slot.commit("a")
    del slot
    view = array[3:]
    del array
    pool.close()
    assert pool.take(SIZE) is None
    assert (view == 1).all()
    assert cache.find("a", SIZE)
    # It can be had by nobody: this process still has a view of it.
    lease = NodeCache(str(own_folder(shared_memory)), SIZE).slot("b", SIZE)
    assert lease is None
    assert (view == 1).all()


def test_sizes_that_change(shared_memory: Path) -> None:
    """However the sizes of states change, a few times what is in use is kept, not all of it."""
    pool = SlotPool(opened(shared_memory))
    held: list[Any] = []
    for turn in range(40):
        size = SIZE + turn * 4 * KIB
        found = pool.take(size)
        assert found is not None
        found[1].commit(f"{turn:x}")
        held = [*held[-1:], found[0]]
        del found
        mapped = sum(entry.array.size for entry in pool._entries)
        assert mapped <= 3 * 3 * size


def test_what_was_kept_for_long(pool: SlotPool, shared_memory: Path) -> None:
    """A large file that is let go late is given back, though nothing fresh is needed any more."""
    large = pool.take(64 * SIZE)
    held = [taken(pool)]
    for _ in range(10):
        held = [*held[-1:], taken(pool)]
    assert large is not None
    del large
    for _ in range(10):
        held = [*held[-1:], taken(pool)]
    assert len(files(shared_memory)) == len(pool._entries) == 3
