"""Several old versions held in memory at once, by the names that they were given: a league's."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable

from redis_state_sync.errors import (
    BlobMissingError,
    CodecError,
    SettingsError,
    StoreError,
    StoreUnavailableError,
    UnknownVersionError,
)
from redis_state_sync.history import History
from redis_state_sync.settings import check_seconds
from redis_state_sync.snapshot import Snapshot
from redis_state_sync.version import Version

# Of what a try in vain took: so it is a twentieth of the time at most.
_REST = 19

logger = logging.getLogger("redis_state_sync")


class SnapshotPool:
    """The pinned versions of a namespace whose pins begin alike, fetched when first asked for::

        pool = SnapshotPool(History(open_store("redis://localhost"), "my-run"), "league/")
        opponent = pool.get(random.choice(pool.names()))

    For one thread. The store is asked which pins there are every `look_every_s` at most, so a pin
    that is given anew stands for the new version from then on. While the store fails, what is held
    stays of use, and asking in vain takes a twentieth of the time at most.

    Args:
        history: Of which namespace. Its `timeout_s` is what a look may take, which EnvRunners want
            to be short.
        prefix: How the names of the pins begin.
        most: How many snapshots to hold; of more, the one goes that was not asked for the longest.
            Each takes the memory of a state, unless its components are in the node's cache.
        look_every_s: Least seconds between two looks at the pins.
        clock: Monotonic seconds; replaceable in tests.

    Raises:
        SettingsError: If an argument is wrong.
    """

    def __init__(
        self,
        history: History,
        prefix: str = "",
        *,
        most: int = 8,
        look_every_s: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not isinstance(history, History):
            raise SettingsError(f"history must be a History, not {type(history).__name__}")
        if type(most) is not int or most < 1:
            raise SettingsError(f"most must be an int of at least 1, got {most!r}")
        check_seconds("look_every_s", look_every_s)
        self._history = history
        self._prefix = prefix
        self._most = most
        self._look_every_s = look_every_s
        self._clock = clock
        self._next_look = self._rests_until = clock()
        self._warned = False
        self._pins: dict[str, Version] = {}
        self._held: OrderedDict[str, Snapshot] = OrderedDict()

    def __repr__(self) -> str:
        return f"SnapshotPool({self._history!r}, {self._prefix!r}, {len(self._held)} held)"

    @property
    def held(self) -> dict[str, Version]:
        """Pin name -> version, of the snapshots that are in memory."""
        return {name: snapshot.version for name, snapshot in self._held.items()}

    def names(self) -> list[str]:
        """The pins that there are, sorted; while the store fails, those of the last look.

        Never raises. A failure is logged, once until a look succeeds.
        """
        started = self._clock()
        if started >= max(self._next_look, self._rests_until):
            try:
                pins = self._history.pins()
            except StoreError as error:
                self._rest(started, error)
            else:
                self._warned = False
                self._pins = {n: v for n, v in pins.items() if n.startswith(self._prefix)}
            self._next_look = self._clock() + self._look_every_s
        return sorted(self._pins)

    def get(self, name: str) -> Snapshot:
        """The version of a pin, from memory if it is there, from the store otherwise.

        Args:
            name: One of `names`.

        Raises:
            UnknownVersionError: If there is no such pin, or not any more, or its version is gone.
                It is left out of `names` until a look finds it again.
            CodecError: If what was fetched is damaged, or not signed as it must be. Likewise.
            StoreError: If the store fails, or failed a moment ago.
        """
        version = self._pins.get(name)
        if version is None:
            self._held.pop(name, None)
            raise UnknownVersionError(f"{self!r} has no pin {str(name)[:80]!r}")
        held = self._held.pop(name, None)
        if held is None or held.version != version:
            held = self._fetched(name, version)
        self._held[name] = held
        while len(self._held) > self._most:
            self._held.popitem(last=False)
        return held

    def close(self) -> None:
        """Lets go of all snapshots. The history is the caller's."""
        self._held.clear()

    def _fetched(self, name: str, version: Version) -> Snapshot:
        started = self._clock()
        if started < self._rests_until:
            raise StoreUnavailableError(f"{self!r} leaves the store alone, which failed just now")
        try:
            return self._history.fetch(version)
        except (UnknownVersionError, BlobMissingError) as error:
            del self._pins[name]
            raise UnknownVersionError(
                f"pin {name!r} of {self!r}, version {version}, is gone: {error}"
            ) from error
        except CodecError:
            del self._pins[name]
            raise
        except StoreError as error:
            self._rest(started, error)
            raise

    def _rest(self, started: float, error: StoreError) -> None:
        now = self._clock()
        self._rests_until = now + _REST * (now - started)
        if not self._warned:
            self._warned = True
            logger.warning("%r goes on with what it has: %s", self, error)
