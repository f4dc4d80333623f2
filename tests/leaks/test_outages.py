"""Failures of every kind, thousands of times: they leave nothing behind."""

from __future__ import annotations

import json

import pytest

from tests.leaks import programs

# Seconds on an idle machine; this one is shared.
pytestmark = pytest.mark.timeout(300)

# Objects are the same to a few, whatever the number of cycles, but for an attempt to connect that
# may be under way when they are counted; blocks settle.
MOST_OBJECTS = 80
MOST_BLOCKS = 300
# A connection has a buffer of 64 KiB, and may wait for the garbage collector.
MOST_BYTES = 24 << 20


@pytest.mark.parametrize(
    ("kind", "cycles"),
    [
        ("refused", 2000),
        ("silence", 2000),
        ("slammed", 2000),
        ("down", 2000),
        ("cut", 2000),
        ("killed", 40),
    ],
)
def test_outages_leave_nothing(kind: str, cycles: int) -> None:
    """However often the store fails, threads, files, processes and memory stay: C4, C73, C84."""
    done = programs.run("outages", kind, cycles, strict=False, timeout=240)
    assert (done.returncode, done.stderr) == (0, "")
    before, _, half_way, end, after = (json.loads(line) for line in done.stdout.splitlines())
    assert end["objects"] - half_way["objects"] < MOST_OBJECTS
    assert end["blocks"] - half_way["blocks"] < MOST_BLOCKS
    assert end["rss"] - half_way["rss"] < MOST_BYTES
    for count in ("threads", "fds", "children", "shared_memory"):
        assert half_way[count] == end[count], count
        assert after[count] == before[count], count
