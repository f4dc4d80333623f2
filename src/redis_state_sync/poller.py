"""Asks the store what there is to fetch, and remembers what need not be looked at again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from redis_state_sync.decisions import Choice, choose
from redis_state_sync.keys import Keys
from redis_state_sync.records import Records
from redis_state_sync.store import Store
from redis_state_sync.version import Version

# A claim and a few of another writer's versions may lie above the one that a reader wants.
_LOOK_AT = 16
# How often a reader looks at the very top of the store, whatever it holds. A store that lost data,
# by a failover or a restart, may go on below what the reader has already looked past.
LOOK_EVERY_S = 1.0


class Poller:
    """Finds the newest version of a namespace that a reader may take.

    Args:
        store: Where.
        keys: Of which namespace.
        records: Reads its records.
        writer: Take states of this writer id only; None: of any.
        clock: Monotonic seconds.
        tracked: Whether to rely on the store's word that nothing changed, see `Store.mark`.
    """

    def __init__(
        self,
        store: Store,
        keys: Keys,
        records: Records,
        writer: str | None,
        clock: Callable[[], float],
        *,
        tracked: bool = False,
    ) -> None:
        self._store = store
        self.keys = keys
        self._records = records
        self.writer = writer
        self._clock = clock
        # Nothing up to here is ever taken: it was applied, or rejected.
        self._dealt_with: Version | None = None
        # Nothing up to here has to be looked at again, for a while.
        self._seen: Version | None = None
        self._looked_at = clock()
        self._tracked = tracked
        # As long as the store's mark is this one, there is nothing newer than `_seen`.
        self._mark: Any = None
        self.answers = 0
        """How often the store answered."""

    @property
    def floor(self) -> Version | None:
        """What the next poll asks for must be newer; None: anything."""
        return self._seen

    def deal_with(self, version: Version) -> None:
        """This version was applied or rejected: only newer ones from now on."""
        self._dealt_with = version if self._dealt_with is None else max(self._dealt_with, version)
        self._seen = self._dealt_with if self._seen is None else max(self._seen, version)

    def reopen(self, version: Version) -> None:
        """This version may be taken once more."""
        self._dealt_with = self._seen = Version(version.generation, version.number - 1)
        self._mark = None

    def unchanged(self) -> bool:
        """Whether it is known without asking that there is nothing new.

        At least every `LOOK_EVERY_S` it is not: a connection may be dead and bring no word.
        """
        return (
            self._mark is not None
            and self._clock() - self._looked_at < LOOK_EVERY_S
            and self._store.mark() == self._mark
        )

    def ask(self, timeout: float) -> Choice:
        """Asks once: one round trip, or two if it is time to look at the top and that is new.

        Raises:
            StoreError: If the store does not answer within `timeout` seconds.
        """
        deadline = self._clock() + timeout
        behind = False
        if self._seen is not None and self._clock() - self._looked_at >= LOOK_EVERY_S:
            top, behind = self._look(timeout)
            if top is None or (self._seen is not None and top <= self._seen):
                return Choice(None, None, self._seen, behind=behind)
            timeout = max(0.001, deadline - self._clock())
        if self._seen is None:
            self._looked_at = self._clock()  # What follows is a look at the very top.
        # Taken before asking: what changes behind the answer changes it.
        mark = self._store.mark() if self._tracked else None
        self._mark = None
        entries = self._store.newest(
            self.keys, after=self._seen, count=_LOOK_AT, timeout=timeout, tracked=self._tracked
        )
        self.answers += 1
        choice = choose(entries, self._seen, self.writer, self._records.open)
        if choice.version is None:
            # Look past what is of no use to us, so that the next poll's answer is empty.
            self._seen, self._mark = choice.floor, mark
        return replace(choice, behind=behind) if behind else choice

    def _look(self, timeout: float) -> tuple[Version | None, bool]:
        """Returns the store's newest version, and whether the store has lost what was taken."""
        newest = self._store.newest(self.keys, timeout=timeout)
        self.answers += 1
        self._looked_at = self._clock()
        top = newest[0].version if newest else None
        if top is None or (self._seen is not None and top < self._seen):
            # What is there now counts again, if it is newer.
            self._seen, self._mark = self._dealt_with, None
        return top, self._dealt_with is not None and (top is None or top < self._dealt_with)
