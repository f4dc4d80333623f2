"""What happened, for observers: RLlib metrics, Prometheus and logs are all observers."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from redis_state_sync.errors import SettingsError
from redis_state_sync.version import Version

logger = logging.getLogger("redis_state_sync")


@dataclass(frozen=True, slots=True)
class Published:
    """A version is stored and announced. Bytes are of blobs; `seconds` from start to announced."""

    version: Version
    bytes_sent: int
    bytes_saved: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Polled:
    """The store was asked. `newest` is a strictly newer version than the held one, or None.

    Polls that found nothing while the reader was acting come as one event: `count` of them, of
    `seconds` each in the mean.
    """

    newest: Version | None
    seconds: float
    count: int = 1


@dataclass(frozen=True, slots=True)
class Fetched:
    """A version's blobs arrived. `skipped`: versions since the last one fetched or applied."""

    version: Version
    bytes_fetched: int
    skipped: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Applied:
    """The receiver acts with this version from now on."""

    version: Version
    seconds: float


@dataclass(frozen=True, slots=True)
class Failed:
    """`operation` is one of claim, publish, heartbeat, poll, fetch, apply."""

    operation: str
    category: str
    message: str


Event = Published | Polled | Fetched | Applied | Failed


class Observer(Protocol):
    """Called with each event, on the thread on which it happened. Must be quick."""

    def __call__(self, event: Event, /) -> None:
        """Takes note of one event."""
        ...


def checked(observers: Any) -> tuple[Observer, ...]:
    """Observers as a tuple; raises `SettingsError` unless they are callables in an iterable."""
    if isinstance(observers, Iterable) and all(map(callable, found := tuple(observers))):
        return found
    raise SettingsError("observers must be a list of callables, each of which takes an event")


def notify(observers: Iterable[Observer], event: Event) -> None:
    """Tells every observer. One that raises is logged, and harms neither sampling nor others."""
    for observer in observers:
        try:
            observer(event)
        except Exception:
            logger.exception("observer %r failed on %r", observer, event)
