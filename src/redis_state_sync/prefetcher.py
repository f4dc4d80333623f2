"""When a reader looks for newer versions in the background: while it acts, and now and then."""

from __future__ import annotations

import math
import os
import threading
import time
import weakref
from collections.abc import Callable

from redis_state_sync import background
from redis_state_sync.pace import Pace

# Newer weights are of no use before an env has made another step.
_OFTEN_S = 0.01


class Prefetcher:
    """Looks, on a thread of its own, while it is on. Dropped with whoever holds it.

    Args:
        look: A method that looks once, and returns whether it found something. Only referred to
            weakly. It must not raise.
        every_s: Least number of seconds between two looks. None: 10 ms, or more where that would
            cost more than a hundredth of a core.
    """

    def __init__(self, look: Callable[[], bool], every_s: float | None = None) -> None:
        self._look = weakref.WeakMethod(look)
        self._pace = Pace(every_s, least_s=_OFTEN_S)
        self._changed = threading.Condition()
        self._pid = os.getpid()
        self._on = False
        self._next_look = 0.0
        self._thread: threading.Thread | None = None

    @property
    def is_on(self) -> bool:
        """Whether it looks."""
        return self._on

    def turn_on(self) -> None:
        """Looks from now on.

        Raises:
            RuntimeError: If there can be no further thread.
        """
        with self._changed:
            if self._thread is None or not self._thread.is_alive():
                self._thread = background.start(
                    self,
                    self._changed,
                    due=Prefetcher._due,
                    work=Prefetcher._work,
                    ended=_nothing,
                    name="redis-state-sync-prefetch",
                )
            self._on = True
            self._changed.notify_all()

    def turn_off(self) -> None:
        """Looks no more. What has begun goes on to its end."""
        self._on = False

    def close(self) -> None:
        """Ends the thread, and waits for it for a moment."""
        if self._pid != os.getpid():
            return  # Before the lock: the fork may have copied it while the thread held it.
        with self._changed:
            self._on = False
            thread, self._thread = self._thread, None
            self._changed.notify_all()
        if thread is not None and thread is not threading.current_thread():
            thread.join(1.0)

    def _due(self) -> background.Due | None:
        if threading.current_thread() is not self._thread:
            return None  # Closed, and perhaps turned on again: then there is another thread.
        if not self._on:
            return background.Due(math.inf, waits=False)
        return background.Due(self._next_look - time.monotonic(), waits=False)

    def _work(self) -> None:
        look = self._look()
        if look is None:
            self.turn_off()
            return
        began = time.thread_time()
        if not look():
            self._pace.spent(time.thread_time() - began)
        self._next_look = time.monotonic() + self._pace.pause


def _nothing() -> None:
    pass
