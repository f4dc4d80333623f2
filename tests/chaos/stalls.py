"""For how long this process, and so the machine, stood still: no promise about time holds then."""

from __future__ import annotations

import os
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
        cpu: Sleep and wake on this one only. Default: where the kernel likes.
    """

    def __init__(self, note: Callable[[float, float], None], *, cpu: int | None = None) -> None:
        self._note = note
        self._cpu = cpu
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
        if self._cpu is not None:
            os.sched_setaffinity(0, {self._cpu})  # Of this thread.
        while True:
            self._asleep_since = before = time.monotonic()
            time.sleep(TICK_S)
            now = time.monotonic()
            if now - before > TICK_S + _LATE_S:
                with self._lock:
                    self._stalls.append((before + TICK_S, now))
                self._note(before + TICK_S, now)


class Gauge:
    """Finds out for how long a thread that computes is put aside for others.

    On a machine that is short of CPUs, one that sleeps is still woken in time, so that a `Watch`
    sees nothing; but one that works is not let finish. Must be used by the thread in question.
    """

    _COMPUTE_S = 0.003
    _EVERY_S = 0.25
    _REMEMBER_S = 2.0

    def __init__(self) -> None:
        self._gaps: deque[tuple[float, float]] = deque(maxlen=20)

    def measure(self) -> None:
        """Computes for a moment."""
        enough, longest = time.thread_time() + self._COMPUTE_S, 0.0
        before = time.monotonic()
        while time.thread_time() < enough:
            now = time.monotonic()
            longest = max(longest, now - before)
            before = now
        self._gaps.append((before, longest))

    def measure_now_and_then(self) -> None:
        """The same, if it was not done for a while."""
        if not self._gaps or time.monotonic() - self._gaps[-1][0] > self._EVERY_S:
            self.measure()

    @property
    def gap_s(self) -> float:
        """The longest time for which it was put aside lately."""
        since = time.monotonic() - self._REMEMBER_S
        return max((gap for t, gap in self._gaps if t > since), default=0.0)


def overlap(stalls: Iterable[Interval], start: float, end: float) -> float:
    """Seconds between two times that lie in any of these intervals, each counted once."""
    total, reached = 0.0, start
    for begin, finish in sorted(stalls):
        begin, finish = max(begin, reached), min(finish, end)
        if finish > begin:
            total += finish - begin
            reached = finish
    return total
