"""How much work a call is, on a machine where others work, too."""

from __future__ import annotations

import time
from collections.abc import Callable

_CALLS = 2000
_ROUNDS = 24


def effort(call: Callable[[], object]) -> float:
    """The CPU time of a call, in that of reading a clock: of a quarter of the rounds at most.

    Both are measured in turn: what slows one down does so to the other.
    """
    ratios = [_cpu_time(call) / _cpu_time(time.perf_counter) for _ in range(_ROUNDS)]
    return sorted(ratios)[_ROUNDS // 4]


def _cpu_time(call: Callable[[], object]) -> float:
    began = time.thread_time()
    for _ in range(_CALLS):
        call()
    return time.thread_time() - began
