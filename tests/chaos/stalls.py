"""For how long this process, and so the machine, stood still: no promise about time holds then."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

TICK_S = 0.005
# A sleep that ends later than this was not the kernel's usual sloppiness.
_LATE_S = 0.01

Interval = tuple[float, float]


class Watch:
    """A thread that does nothing but sleep, and notes when it was woken late.

    Args:
        note: Told of every stall, by its beginning and end.
    """

    def __init__(self, note: Callable[[float, float], None]) -> None:
        self._note = note
        self._stalls: deque[Interval] = deque(maxlen=2000)
        self._lock = threading.Lock()
        self._asleep_since = time.monotonic()
        threading.Thread(target=self._run, name="stalls", daemon=True).start()

    def within(self, start: float, end: float) -> float:
        """Seconds of standing still between two `time.monotonic()` times."""
        # This thread may have been woken, and the watching one not yet.
        overslept = (self._asleep_since + TICK_S, end)
        with self._lock:
            found = [*self._stalls]
        if overslept[1] - overslept[0] > _LATE_S:
            found.append(overslept)
        return overlap(found, start, end)

    def _run(self) -> None:
        while True:
            self._asleep_since = before = time.monotonic()
            time.sleep(TICK_S)
            now = time.monotonic()
            if now - before > TICK_S + _LATE_S:
                with self._lock:
                    self._stalls.append((before + TICK_S, now))
                self._note(before + TICK_S, now)


def overlap(stalls: Iterable[Interval], start: float, end: float) -> float:
    """Seconds between two times that lie in any of these intervals, each counted once."""
    total, reached = 0.0, start
    for begin, finish in sorted(stalls):
        begin, finish = max(begin, reached), min(finish, end)
        if finish > begin:
            total += finish - begin
            reached = finish
    return total
