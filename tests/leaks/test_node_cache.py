"""The node's cache: descriptors, mappings, files and memory that come are given back."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest

from redis_state_sync.node_cache import FOLDER_ENV
from tests.leaks import programs
from tests.leaks.test_outages import MOST_BLOCKS, MOST_OBJECTS

# Seconds on an idle machine; this one is shared.
pytestmark = pytest.mark.timeout(300)

# A state more or less may be mapped when it is counted.
MOST_BYTES = 2 << 20


@pytest.mark.parametrize(
    ("kind", "cycles"), [("published", 2000), ("come_and_go", 200), ("forked", 250)]
)
def test_sharing_leaves_nothing(kind: str, cycles: int) -> None:
    """However often states are shared, files, mappings, descriptors and memory stay: C84."""
    with tempfile.TemporaryDirectory(prefix="rss-", dir="/dev/shm") as folder:
        done = programs.run("node_cache", kind, cycles, timeout=240, **{FOLDER_ENV: folder})
        assert (done.returncode, done.stderr) == (0, "")
        assert list(Path(folder).iterdir()) == []
    before, warm, half_way, end, after = (json.loads(line) for line in done.stdout.splitlines())
    assert warm["shared_memory"] > before["shared_memory"] or kind == "come_and_go"
    assert end["objects"] - half_way["objects"] < MOST_OBJECTS
    assert end["blocks"] - half_way["blocks"] < MOST_BLOCKS
    assert end["rss"] - half_way["rss"] < MOST_BYTES
    for count in ("threads", "fds", "children", "shared_memory"):
        assert half_way[count] == end[count], count
        assert after[count] == before[count], count
