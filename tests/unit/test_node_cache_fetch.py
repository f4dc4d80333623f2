"""One of many fills a file, the others wait: until it is whole, gives up, dies or stands still."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from redis_state_sync.node_cache import NodeCache
from tests.unit.forking import end_of, start_child
from tests.unit.node_files import KIB, LONG, content, files, filler, holds, opened, wait_for

SIZE = 64 * KIB
Fill = Callable[[memoryview, Callable[[], None]], None]


@pytest.fixture
def cache(shared_memory: Path) -> NodeCache:
    return opened(shared_memory, 4 * SIZE)


@pytest.fixture
def children() -> Iterator[list[int]]:
    pids: list[int] = []
    yield pids
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        end_of(pid)


def fetched(cache: NodeCache, name: str, fill: Fill, stall: float = LONG) -> bool:
    lease = cache.fetch(name, SIZE, fill, deadline=time.monotonic() + LONG, stall=stall)
    return holds(lease, name)


def nobody(buffer: memoryview, progress: Callable[[], None]) -> None:
    raise AssertionError("this one is not to fill")


def standing_still(cache: NodeCache, mark: Path, children: list[int]) -> None:
    """Another process begins to fill ``a``, and does not go on."""

    def fill(buffer: memoryview, progress: Callable[[], None]) -> None:
        buffer[: SIZE // 2] = bytes(SIZE // 2)
        mark.touch()
        time.sleep(60)

    children.append(start_child(lambda: fetched(cache, "a", fill)))
    wait_for(mark.exists)


def test_alone(cache: NodeCache) -> None:
    """Who is alone fills the file; who comes later finds it, whatever the time."""
    assert fetched(cache, "a", filler("a", SIZE))
    assert holds(cache.fetch("a", SIZE, nobody, deadline=0, stall=0), "a")


def test_sixteen_processes_fill_once(cache: NodeCache, shared_memory: Path) -> None:
    """Sixteen processes that want the same file at once fill it once, and all have it."""
    start, log = shared_memory / "start", shared_memory / "log"
    log.touch()

    def fill(buffer: memoryview, progress: Callable[[], None]) -> None:
        with log.open("a") as lines:
            lines.write("filled\n")
        time.sleep(0.1)
        buffer[:] = content("a", SIZE)

    def work() -> None:
        wait_for(start.exists)
        assert fetched(cache, "a", fill)

    children = [start_child(work) for _ in range(16)]
    start.touch()
    assert [end_of(child) for child in children] == [0] * 16
    assert log.read_text() == "filled\n"


def test_threads_fill_once(cache: NodeCache) -> None:
    """Threads of one process that want the same file at once fill it once, and all have it."""
    fills: list[int] = []
    results: list[bool] = []

    def fill(buffer: memoryview, progress: Callable[[], None]) -> None:
        fills.append(1)
        time.sleep(0.1)
        buffer[:] = content("a", SIZE)

    threads = [
        threading.Thread(target=lambda: results.append(fetched(cache, "a", fill))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 8
    assert fills == [1]


def test_different_files_at_once(
    cache: NodeCache, shared_memory: Path, children: list[int]
) -> None:
    """Who fills one file keeps nobody from another one."""
    standing_still(cache, shared_memory / "mark", children)
    assert fetched(cache, "b", filler("b", SIZE))


def test_a_killed_filler(cache: NodeCache, shared_memory: Path, children: list[int]) -> None:
    """When the one who fills is killed, another one that waits fills the file, and all have it."""
    standing_still(cache, shared_memory / "mark", children)
    log = shared_memory / "log"
    log.touch()

    def fill(buffer: memoryview, progress: Callable[[], None]) -> None:
        with log.open("a") as lines:
            lines.write("filled\n")
        buffer[:] = content("a", SIZE)

    def wait() -> None:
        assert fetched(cache, "a", fill)

    waiting = [start_child(wait) for _ in range(4)]
    time.sleep(0.1)
    assert log.read_text() == ""
    os.kill(children[0], signal.SIGKILL)
    assert [end_of(child) for child in waiting] == [0] * 4
    assert log.read_text() == "filled\n"


def test_a_filler_that_stands_still(
    cache: NodeCache, shared_memory: Path, children: list[int]
) -> None:
    """Who waits for one that does not go on gives up after the stall, and does not fill."""
    standing_still(cache, shared_memory / "mark", children)
    began = time.monotonic()
    assert not fetched(cache, "a", nobody, stall=0.2)
    assert 0.2 <= time.monotonic() - began < LONG


def test_a_filler_that_goes_on(
    cache: NodeCache, shared_memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waits for one that says so goes on waiting, for many times the stall."""
    slot = cache.slot("a", SIZE)
    assert slot is not None
    now = [0.0]

    def sleep(seconds: float) -> None:
        time.sleep(0.02)  # Two times of a file may be the same if they are closer.
        now[0] += 0.7
        if now[0] < 7:
            slot.progress()
        elif "a.part" in files(shared_memory):
            slot.buffer[:] = content("a", SIZE)
            slot.commit()

    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=sleep, time=time.time)
    monkeypatch.setattr("redis_state_sync.node_cache.time", clock)
    assert holds(cache.fetch("a", SIZE, nobody, deadline=9, stall=1), "a")
    assert now[0] >= 7


def test_fillers_that_fail_one_after_the_other(
    cache: NodeCache, shared_memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waits for many that fail in turn, as with a server that hangs, waits one stall in all."""
    slots = [cache.slot("a", SIZE)]
    now = [0.0]

    def sleep(seconds: float) -> None:
        time.sleep(0.02)  # Two times of a file may be the same if they are closer.
        now[0] += 0.3
        assert slots[-1] is not None
        slots[-1].discard()
        slots.append(cache.slot("a", SIZE))

    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=sleep, time=time.time)
    monkeypatch.setattr("redis_state_sync.node_cache.time", clock)
    assert cache.fetch("a", SIZE, nobody, deadline=99, stall=1) is None
    assert 1 <= now[0] < 2


def test_the_deadline(cache: NodeCache, shared_memory: Path, children: list[int]) -> None:
    """Nobody waits beyond the deadline."""
    standing_still(cache, shared_memory / "mark", children)
    began = time.monotonic()
    assert cache.fetch("a", SIZE, nobody, deadline=began + 0.2, stall=LONG) is None
    assert 0.2 <= time.monotonic() - began < LONG


def test_a_fill_that_fails(cache: NodeCache, shared_memory: Path) -> None:
    """What filling raises is raised, the file is given up, and one that waits fills it."""
    mark, go_on = shared_memory / "mark", shared_memory / "go_on"

    def fail(buffer: memoryview, progress: Callable[[], None]) -> None:
        mark.touch()
        wait_for(go_on.exists)
        raise KeyError("of the one who fills")

    def work() -> None:
        with pytest.raises(KeyError, match="of the one who fills"):
            fetched(cache, "a", fail)

    failing = start_child(work)
    wait_for(mark.exists)
    results: list[bool] = []
    thread = threading.Thread(target=lambda: results.append(fetched(cache, "a", filler("a", SIZE))))
    thread.start()
    time.sleep(0.1)
    assert results == []
    go_on.touch()
    thread.join()
    assert results == [True]
    assert end_of(failing) == 0


def test_nothing_is_left_of_a_fill_that_fails(cache: NodeCache, shared_memory: Path) -> None:
    """A file that could not be filled is not there, even while the error is being handled."""

    def fail(buffer: memoryview, progress: Callable[[], None]) -> None:
        raise KeyError("a")

    try:
        fetched(cache, "a", fail)
    except KeyError:
        assert files(shared_memory) == []
    assert fetched(cache, "a", filler("a", SIZE))


def test_no_room(cache: NodeCache) -> None:
    """Without room nobody fills and nobody waits."""
    held = [cache.slot(name, SIZE) for name in "bcde"]
    assert all(held)
    began = time.monotonic()
    assert not fetched(cache, "a", nobody)
    assert time.monotonic() - began < LONG
