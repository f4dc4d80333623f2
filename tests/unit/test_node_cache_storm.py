"""A node's cache under everything at once."""

from __future__ import annotations

from pathlib import Path

from tests.unit.node_files import files, opened
from tests.unit.node_storm import storm


def test_many_processes(shared_memory: Path) -> None:
    """Processes that find, write, give up and fetch at random see what is right, and leave none."""
    storm(shared_memory, processes=8, seconds=1.5, kills=False, seed=1)
    assert list(shared_memory.iterdir()) == []


def test_many_processes_that_are_killed(shared_memory: Path) -> None:
    """The same while they are killed at any moment; what they leave, the next one removes."""
    assert storm(shared_memory, processes=8, seconds=1.5, kills=True, seed=2)
    cache = opened(shared_memory)
    assert files(shared_memory) == []
    assert cache.find("0", 1) is None
