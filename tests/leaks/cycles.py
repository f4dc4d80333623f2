"""Does something many times, and prints what is held meanwhile: ``KIND CYCLES``."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict

from tests.leaks.census import Own

WAIT = 30.0
Cycle = Callable[[], object]


def main(*kinds: Callable[[], AbstractContextManager[Cycle]]) -> None:
    """Prints a line of JSON: before, after a tenth, half-way, at the end, and when it is over."""
    logging.getLogger("redis_state_sync").setLevel(logging.CRITICAL)
    kind, count = {kind.__name__: kind for kind in kinds}[sys.argv[1]], int(sys.argv[2])
    say()
    with kind() as cycle:
        for part in (count // 10, count * 4 // 10, count // 2):
            for _ in range(part):
                cycle()
            say()
    del cycle
    say(settle=True)


def say(*, settle: bool = False) -> None:
    """Keeps nothing: what is printed at once needs no memory later."""
    # Connecting threads, and those of peers, end a moment after what they were needed for.
    deadline = time.monotonic() + (WAIT if settle else 1.0)
    own = Own.take()
    while own.threads > 1 and time.monotonic() < deadline:
        time.sleep(0.02)
        own = Own.take()
    print(json.dumps(asdict(own)), flush=True)
