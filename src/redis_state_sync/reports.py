"""What a reader's observers and its log get to hear, on the reader's own thread."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from redis_state_sync.errors import RedisStateSyncError
from redis_state_sync.events import Event, Failed, Observer, Polled, notify
from redis_state_sync.version import Version

logger = logging.getLogger("redis_state_sync")

_NO_THREAD = "prefetch"


class Reports:
    """Tells a reader's observers what happens. All calls are made with the reader's lock.

    Args:
        observers: Whom to tell.
    """

    def __init__(self, observers: tuple[Observer, ...]) -> None:
        self._observers = observers
        self._warned: set[str] = set()
        self._put_off = False
        self._waiting: list[Event] = []
        # Polls that found nothing, and were not told of one by one.
        self._idle_polls, self._idle_seconds, self._unasked = 0, 0.0, 0

    @property
    def anyone_listens(self) -> bool:
        """Whether there are observers at all."""
        return bool(self._observers)

    def tell(self, event: Event) -> None:
        """Tells of one event."""
        if self._put_off:
            self._waiting.append(event)
        else:
            notify(self._observers, event)

    def polled(self, newest: Version | None, seconds: float, *, acting: bool) -> None:
        """Tells of a poll: later and with others, if it found nothing and the reader is acting."""
        if acting and newest is None:
            self._idle_polls += 1
            self._idle_seconds += seconds
        elif self._observers:
            self.tell(Polled(newest, seconds))

    def unchanged(self, *, acting: bool) -> None:
        """The same of one that had not to be made: nothing had changed."""
        if acting:
            self._idle_polls += 1
            self._unasked += 1
        elif self._observers:
            self.tell(Polled(None, 0.0, unasked=1))

    @contextmanager
    def put_off(self) -> Iterator[None]:
        """Within this block observers hear nothing: it is not run by the reader's thread."""
        self._put_off = True
        try:
            yield
        finally:
            self._put_off = False

    def catch_up(self) -> None:
        """Tells what was put off."""
        if self._idle_polls:
            count, seconds, unasked = self._idle_polls, self._idle_seconds, self._unasked
            self._idle_polls, self._idle_seconds, self._unasked = 0, 0.0, 0
            if self._observers:
                self.tell(Polled(None, seconds / count, count, unasked))
        waiting, self._waiting = self._waiting, []
        for event in waiting:
            self.tell(event)

    def failed(self, operation: str, error: RedisStateSyncError, held: Version | None) -> None:
        """Counts a failure, and warns of the first one of its kind."""
        self.tell(Failed(operation, error.category, str(error)))
        self.warn(
            f"{operation}/{error.category}",
            "%s failed, going on with version %s: %s",
            operation,
            held,
            error,
        )

    def warn(self, kind: str, message: str, *details: Any) -> None:
        """Once, until `recovered`."""
        if kind not in self._warned:
            self._warned.add(kind)
            logger.warning(message, *details)

    def no_thread(self, error: RuntimeError) -> None:
        """Warns once that nothing is fetched in the background."""
        self.warn(_NO_THREAD, "not fetching in the background: %s", error)

    def recovered(self) -> None:
        """Something was applied: what fails from now on is news again."""
        self._warned &= {_NO_THREAD}
