"""Many publishes and fetches: what is held at the end was held after the first few."""

from __future__ import annotations

import json
from collections.abc import Callable
from statistics import median
from typing import Any

import pytest

from tests.leaks import programs

# Seconds on an idle machine; this one is shared.
pytestmark = pytest.mark.timeout(300)

CYCLES = 10_000
SAMPLES = 25
# Between the middle third of the run and the last one lie 3333 publishes and fetches. Python's own
# allocations settle by some 30 blocks meanwhile, however many cycles there are.
MOST_BLOCKS = 150
MOST_BYTES = 256 << 10
MOST_SERVER_BYTES = 32 << 10
MOST_OBJECTS = 20
MEASURES = {"objects", "blocks", "rss", "used", "rate"}


@pytest.fixture(scope="module")
def samples() -> list[dict[str, Any]]:
    """One before, `SAMPLES` while publishing, one after."""
    done = programs.run("soak", CYCLES, SAMPLES, strict=False, timeout=240)
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_counts_stay_the_same(samples: list[dict[str, Any]]) -> None:
    """10,000 publishes and fetches add no thread, file, connection, key or child: C66, C84."""
    before, *during, after = samples
    counts = [{k: v for k, v in sample.items() if k not in MEASURES} for sample in during]
    assert len(counts) == SAMPLES
    assert all(count == counts[0] for count in counts)
    # versions, readers, the frozen module, the filter (changed by every tenth), and four times two
    assert counts[0]["keys"] == 2 + 1 + 1 + 4 * 2
    assert counts[0]["connections"] == before["connections"] + 2
    held = ("threads", "fds", "children", "shared_memory", "connections", "server_fds")
    assert {name: after[name] for name in held} == {name: before[name] for name in held}


def test_memory_stays_the_same(
    samples: list[dict[str, Any]], record_property: Callable[[str, object], None]
) -> None:
    """10,000 publishes and fetches make neither the client nor the server grow: C66."""
    during = samples[1:-1]
    third = len(during) // 3
    middle, last = during[third : 2 * third], during[-third:]
    growth = {
        name: median(s[name] for s in last) - median(s[name] for s in middle) for name in MEASURES
    }
    record_property("cycles_per_second", round(median(s["rate"] for s in during)))
    assert growth["objects"] < MOST_OBJECTS
    assert growth["blocks"] < MOST_BLOCKS
    assert growth["rss"] < MOST_BYTES
    assert growth["used"] < MOST_SERVER_BYTES
