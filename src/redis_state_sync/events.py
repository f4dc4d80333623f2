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
    `seconds` each in the mean. Of these, `unasked` took no time: that nothing had changed was known
    without asking.
    """

    newest: Version | None
    seconds: float
    count: int = 1
    unasked: int = 0


@dataclass(frozen=True, slots=True)
class Fetched:
    """A version's blobs arrived. `skipped`: versions since the last one fetched or applied."""

    version: Version
    bytes_fetched: int
    skipped: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Applied:
    """The receiver acts with this version from now on.

    `published_ms`: when it was published, by its learner's clock, in ms since 1970; None if that
    is not known.
    """

    version: Version
    seconds: float
    published_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """`operation` is one of publish, heartbeat, retain; poll, fetch, note, apply."""

    operation: str
    category: str
    message: str


@dataclass(frozen=True, slots=True)
class Stale:
    """A refresh found a version older than the limits allow, and waited so many seconds."""

    held: Version | None
    waited: float


@dataclass(frozen=True, slots=True)
class Claimed:
    """A learner took the namespace over: older generations are refused from now on."""

    generation: int


@dataclass(frozen=True, slots=True)
class Dropped:
    """So many versions were replaced by newer ones before they were sent."""

    count: int


@dataclass(frozen=True, slots=True)
class Looked:
    """A learner looked after what it has stored, as it does twice a second."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Recovered:
    """The store did what a learner asked, after failures. `operation` is as in `Failed`."""

    operation: str


@dataclass(frozen=True, slots=True)
class Pushed:
    """RLlib's learner sent a version by Ray's own way, because the store was down."""

    version: Version


Event = (
    Published
    | Polled
    | Fetched
    | Applied
    | Failed
    | Stale
    | Claimed
    | Dropped
    | Looked
    | Recovered
    | Pushed
)


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
