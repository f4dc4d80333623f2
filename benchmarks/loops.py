"""Closed loops: the next call begins when the last one ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

# What the first calls of a turn pay for the turn of the arm before: cold caches, a sleeping core.
WARM_UP = 20


@dataclass(frozen=True)
class Latencies:
    """Of one loop: ns for each call, int64 of shape ``(n,)``, and the seconds that it ran."""

    ns: np.ndarray[Any, Any]
    seconds: float

    @property
    def rate(self) -> float:
        """Calls per second."""
        return len(self.ns) / self.seconds

    def microseconds(self, percent: float) -> float:
        """A percentile of the calls."""
        return float(np.percentile(self.ns, percent)) / 1000


def together(loops: Sequence[Latencies]) -> Latencies:
    """All calls of loops that ran at the same time."""
    return Latencies(
        np.concatenate([loop.ns for loop in loops]), max(loop.seconds for loop in loops)
    )


def closed_loop(call: Callable[[], Any], seconds: float) -> Latencies:
    """Calls until the time is over, after a warm-up."""
    for _ in range(WARM_UP):
        call()
    clock = time.perf_counter_ns
    samples = []
    begin = before = clock()
    end = begin + int(seconds * 1e9)
    while before < end:
        call()
        after = clock()
        samples.append(after - before)
        before = after
    return Latencies(np.array(samples, np.int64), (before - begin) / 1e9)


def in_threads(call: Callable[[], Any], threads: int, seconds: float) -> Latencies:
    """The same loop in several threads of this process."""
    if threads == 1:
        return closed_loop(call, seconds)
    loops: list[Latencies] = []
    running = [
        threading.Thread(target=lambda: loops.append(closed_loop(call, seconds)))
        for _ in range(threads)
    ]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    if len(loops) != threads:
        raise RuntimeError("a loop failed, see above")
    return together(loops)
