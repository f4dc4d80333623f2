"""What was closed, dropped or never came to be leaves nothing behind."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest

from tests.leaks import programs
from tests.leaks.test_outages import MOST_BLOCKS, MOST_BYTES, MOST_OBJECTS

# Seconds on an idle machine; this one is shared.
pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize(
    ("kind", "cycles"),
    [
        ("closed", 300),
        ("dropped", 300),
        ("prefetched", 1000),
        ("taken_over", 100),
        ("shut_out", 300),
        ("callback_raises", 300),
        ("servers_stopped", 10),
        ("servers_dropped", 10),
        ("servers_that_fail", 10),
    ],
)
def test_lifetimes_leave_nothing(kind: str, cycles: int) -> None:
    """Learners, readers, stores and servers that end in any way leave nothing behind: C84."""
    # A socket's path must be short.
    with tempfile.TemporaryDirectory(prefix="rss-", dir="/tmp") as folder:
        done = programs.run("lifetimes", kind, cycles, timeout=240, TMPDIR=folder)
        assert list(Path(folder).iterdir()) == []
    assert (done.returncode, done.stderr) == (0, "")
    before, _, half_way, end, after = (json.loads(line) for line in done.stdout.splitlines())
    assert end["objects"] - half_way["objects"] < MOST_OBJECTS
    assert end["blocks"] - half_way["blocks"] < MOST_BLOCKS
    assert end["rss"] - half_way["rss"] < MOST_BYTES
    for count in ("threads", "fds", "children", "shared_memory"):
        assert half_way[count] == end[count], count
        assert after[count] == before[count], count


def test_readers_dropped_while_prefetching() -> None:
    """Their threads and connections end by themselves, soon after: nothing is left of them."""
    with tempfile.TemporaryDirectory(prefix="rss-", dir="/tmp") as folder:
        done = programs.run(
            "lifetimes", "dropped_while_prefetching", 100, timeout=240, TMPDIR=folder
        )
    assert (done.returncode, done.stderr) == (0, "")
    before, _, _, end, after = (json.loads(line) for line in done.stdout.splitlines())
    for count in ("threads", "fds", "children", "shared_memory"):
        assert after[count] == before[count], count
    assert end["threads"] < 100
