"""Processes that use a node's cache: how they come, fork, crash and go, and what is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.forking import end_of, in_child, start_child
from tests.unit.node_files import (
    KIB,
    content,
    files,
    holds,
    opened,
    wait_for,
    written,
)

SIZE = 64 * KIB


def run(script: str, folder: Path) -> subprocess.Popen[bytes]:
    """A process that opens the cache as `cache`, runs the script, and ends."""
    start = (
        "import sys; from pathlib import Path; "
        "from tests.unit.node_files import content, files, holds, opened, written; "
        "folder = Path(sys.argv[1]); cache = opened(folder); "
    )
    return subprocess.Popen(
        [sys.executable, "-X", "dev", "-c", start + script, str(folder)], stderr=subprocess.PIPE
    )


def test_the_last_one_clears(shared_memory: Path) -> None:
    """A process that ends leaves its files to the others; the last one leaves nothing behind.

    What it had begun goes with the next file that anyone begins.
    """
    script = f"held = written(cache, 'a', {SIZE}), cache.slot('b', {SIZE})"
    cache = opened(shared_memory)
    assert run(script, shared_memory).communicate()[1] == b""
    assert files(shared_memory) == ["a", "b.part"]
    assert holds(cache.find("a", SIZE), "a")
    assert cache.slot("c", 10 * SIZE)
    assert files(shared_memory) == ["a"]
    del cache
    assert list(shared_memory.iterdir()) == []
    assert run(script, shared_memory).communicate()[1] == b""
    assert list(shared_memory.iterdir()) == []


def test_a_cache_that_is_dropped(shared_memory: Path) -> None:
    """Nothing is left of a cache that nobody in this process refers to, but what is mapped."""
    before = os.listdir("/proc/self/fd")
    cache = opened(shared_memory)
    mapping = written(cache, "a", SIZE).map()
    cache.slot("b", SIZE)
    del cache
    assert list(shared_memory.iterdir()) == []
    assert mapping == content("a", SIZE)
    del mapping
    assert os.listdir("/proc/self/fd") == before


def test_a_crash(shared_memory: Path) -> None:
    """What killed processes have left is removed by the first one that comes."""

    def crash() -> None:
        cache = opened(shared_memory)
        held = written(cache, "a", SIZE), cache.slot("b", SIZE)
        assert held
        os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(crash) == -signal.SIGKILL
    assert files(shared_memory) == ["a", "b.part"]
    cache = opened(shared_memory)
    assert files(shared_memory) == []
    assert cache.find("a", SIZE) is None
    assert holds(written(cache, "b", SIZE), "b")


def test_a_crash_beside_others(shared_memory: Path) -> None:
    """Who comes while another one uses the cache removes nothing of it."""
    cache = opened(shared_memory)
    written(cache, "a", SIZE)
    assert in_child(lambda: holds(opened(shared_memory).find("a", SIZE), "a") or 1 / 0) == 0
    assert files(shared_memory) == ["a"]


def test_a_forked_child_ends(shared_memory: Path) -> None:
    """A child that ends in the ordinary way takes nothing from its parent: locks, slots, files."""
    script = f"""
import os
lease, slot = written(cache, "a", {SIZE}), cache.slot("b", {SIZE})
child = os.fork()
if not child:
    assert holds(cache.find("a", {SIZE}), "a")
    sys.exit()
assert os.waitpid(child, 0)[1] == 0
assert files(folder) == ["a", "b.part"]
slot.buffer[:] = content("b", {SIZE})
assert holds(slot.commit(), "b") and holds(cache.find("a", {SIZE}), "a")
"""
    assert run(script, shared_memory).communicate()[1] == b""
    assert list(shared_memory.iterdir()) == []


def test_a_forked_child_outlives_the_cache(shared_memory: Path) -> None:
    """A child uses the cache on its own, even when its parent has left it."""
    caches = [opened(shared_memory)]
    go_on = shared_memory / "go_on"

    def work() -> None:
        wait_for(go_on.exists)
        assert holds(written(caches[0], "b", SIZE), "b")

    child = start_child(work)
    written(caches[0], "a", SIZE)
    caches.clear()
    assert list(shared_memory.iterdir()) == []
    go_on.touch()
    assert end_of(child) == 0


def test_a_forked_child_outlives_a_crash(shared_memory: Path) -> None:
    """A child that does not use the cache keeps nobody from removing what its parent has left."""
    ready, go_on = shared_memory / "ready", shared_memory / "go_on"

    def crash() -> None:
        cache = opened(shared_memory)
        start_child(lambda: (ready.touch(), wait_for(go_on.exists)))
        wait_for(ready.exists)
        written(cache, "a", SIZE)
        os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(crash) == -signal.SIGKILL
    assert files(shared_memory) == ["a"]
    cache = opened(shared_memory)
    assert files(shared_memory) == []
    assert cache.find("a", SIZE) is None
    go_on.touch()


def test_a_slot_of_the_parent(shared_memory: Path) -> None:
    """A child can neither commit nor remove what its parent writes."""
    cache = opened(shared_memory)
    slot = cache.slot("a", SIZE)
    assert slot is not None

    def commit() -> None:
        with pytest.raises(RuntimeError, match="another process"):
            slot.commit()
        slot.discard()
        assert files(shared_memory) == ["a.part"]

    assert in_child(commit) == 0
    slot.buffer[:] = content("a", SIZE)
    assert holds(slot.commit(), "a")


def test_a_lease_of_the_parent(shared_memory: Path) -> None:
    """What a child inherited stays as it is for the child, whatever its parent does with it."""
    cache = opened(shared_memory, 2 * SIZE)
    mappings = [written(cache, "a", SIZE).map()]
    go_on = shared_memory / "go_on"

    def look() -> None:
        wait_for(go_on.exists)
        assert mappings[0] == content("a", SIZE)

    child = start_child(look)
    mappings.clear()
    for name in "bcd":
        written(cache, name, SIZE)
    assert "a" in files(shared_memory)
    go_on.touch()
    assert end_of(child) == 0
    written(cache, "e", 2 * SIZE)
    assert files(shared_memory) == ["e"]


def test_a_fork_amid_the_books(shared_memory: Path) -> None:
    """A child that was forked while a thread held the books does not keep them."""
    cache = opened(shared_memory)
    go_on = shared_memory / "go_on"
    folder = cache._joined()
    with folder.books():
        child = start_child(lambda: wait_for(go_on.exists))
    assert cache.slot("a", SIZE) is not None
    go_on.touch()
    assert end_of(child) == 0


def test_many_come_and_go(shared_memory: Path) -> None:
    """Processes that join and leave at every moment all have a cache, and the last leaves none."""

    def work() -> None:
        for _ in range(40):
            cache = opened(shared_memory)
            name = f"{os.getpid():x}"
            assert holds(cache.find(name, SIZE) or written(cache, name, SIZE), name)
            del cache

    children = [start_child(work) for _ in range(4)]
    assert [end_of(child) for child in children] == [0] * 4
    assert list(shared_memory.iterdir()) == []
