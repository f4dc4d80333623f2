"""Processes that use a node's cache in every way at once, are killed, and check all they get."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

from redis_state_sync.node_cache import NodeCache
from redis_state_sync.private_folder import locked
from tests.unit.forking import end_of, start_child
from tests.unit.node_files import KIB, content, opened, own_folder

NAMES = 12
LIMIT = 256 * KIB


def size_of(name: str) -> int:
    """Of the file of that name, in bytes."""
    return random.Random(f"size of {name}").randint(1, 48 * KIB)


def storm(folder: Path, *, processes: int, seconds: float, kills: bool, seed: int) -> int:
    """Lets them go on for some time.

    Returns:
        How many were killed.

    Raises:
        AssertionError: If one of them has seen something wrong, or the cache grew too large.
    """
    chance = random.Random(seed)
    end = time.monotonic() + seconds
    children = {
        start_child(lambda number=number: _work(folder, end, number)): number
        for number in range(processes)
    }
    killed = 0
    while time.monotonic() < end:
        time.sleep(chance.uniform(0, 0.02))
        assert _size(folder) <= LIMIT
        if kills:
            pid = chance.choice(list(children))
            os.kill(pid, signal.SIGKILL)
            assert end_of(pid) in (-signal.SIGKILL, 0)  # It may have come to its end just now.
            del children[pid]
            killed += 1
            number = processes + killed
            children[start_child(lambda number=number: _work(folder, end, number))] = number
    assert [end_of(pid) for pid in children] == [0] * processes
    return killed


def _size(folder: Path) -> int:
    try:
        own = os.open(own_folder(folder), os.O_RDONLY)
    except FileNotFoundError:
        return 0
    try:
        with locked(own):  # So that no file is counted under two names.
            return sum(_blocks(name, own) for name in os.listdir(own)) * 512
    finally:
        os.close(own)


def _blocks(name: str, folder: int) -> int:
    try:
        return os.stat(name, dir_fd=folder).st_blocks
    except FileNotFoundError:
        return 0  # Given up just now.


def _work(folder: Path, end: float, seed: int) -> None:
    chance = random.Random(seed)
    mapped: list[tuple[str, memoryview]] = []
    cache = opened(folder, LIMIT)
    while time.monotonic() < end:
        name = f"{chance.randrange(NAMES):x}"
        got = chance.choice([_find, _write, _give_up, _fetch, _fetch])(cache, name, chance)
        if got is not None:
            mapped.append((name, got))
        if len(mapped) > 3 or (mapped and chance.random() < 0.3):
            then, mapping = mapped.pop(chance.randrange(len(mapped)))
            assert mapping == content(then, size_of(then))
            mapping[:] = bytes(len(mapping))
            del mapping
        if chance.random() < 0.02:
            del cache
            cache = opened(folder, LIMIT)


def _find(cache: NodeCache, name: str, chance: random.Random) -> memoryview | None:
    lease = cache.find(name, size_of(name))
    return None if lease is None else lease.map()


def _write(cache: NodeCache, name: str, chance: random.Random) -> memoryview | None:
    slot = cache.slot(name, size_of(name))
    if slot is None:
        return None
    slot.buffer[:] = content(name, size_of(name))
    return slot.commit().map()


def _give_up(cache: NodeCache, name: str, chance: random.Random) -> None:
    slot = cache.slot(name, size_of(name))
    if slot is not None:
        slot.buffer[: size_of(name) // 2] = bytes(size_of(name) // 2)
        if chance.random() < 0.5:
            slot.discard()


def _fetch(cache: NodeCache, name: str, chance: random.Random) -> memoryview | None:
    size = size_of(name)

    def fill(buffer: memoryview, progress: Callable[[], None]) -> None:
        buffer[: size // 2] = content(name, size)[: size // 2]
        progress()
        time.sleep(chance.uniform(0, 0.004))
        if chance.random() < 0.1:
            raise ConnectionError
        buffer[size // 2 :] = content(name, size)[size // 2 :]

    try:
        lease = cache.fetch(name, size, fill, deadline=time.monotonic() + 1, stall=0.5)
    except ConnectionError:
        return None
    return None if lease is None else lease.map()
