"""A reader that has nothing yet: it shows what the store really holds."""

from __future__ import annotations

import threading
import time
from collections import Counter

from redis_state_sync import CodecError, Snapshot, StateSubscriber, Version, open_store
from redis_state_sync.events import Event, Failed
from redis_state_sync.keyring import Keyring
from tests.chaos.bounds import FIRST_TIMEOUT_S, SETTINGS
from tests.chaos.content import TornError, mark_of


class Newcomer:
    """Reads on a thread, until it is closed."""

    def __init__(
        self, name: str, url: str, namespace: str, *, large: bool, keyring: Keyring | None
    ) -> None:
        self.name = name
        self.applied: list[tuple[float, Version]] = []
        self.violations: list[str] = []
        self.failures: Counter[str] = Counter()
        self._large = large
        self._subscriber = StateSubscriber(
            open_store(url),
            namespace,
            name=name,
            first_timeout_s=FIRST_TIMEOUT_S,
            transfer_timeout_s=SETTINGS.transfer_timeout_s,
            keyring=keyring,
            node_cache_bytes=0,
            observers=[self._note],
        )
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name)
        self._thread.start()

    def close(self) -> None:
        """Ends it."""
        self._done.set()
        self._thread.join()
        self._subscriber.close()

    def _run(self) -> None:
        try:
            while not self._done.is_set():
                self._subscriber.refresh(self._apply)
                self._done.wait(0.02)
        except Exception as error:
            self.violations.append(f"{self.name}: unexpected {error!r}")

    def _note(self, event: Event) -> None:
        if isinstance(event, Failed):
            self.failures[event.category] += 1

    def _apply(self, snapshot: Snapshot) -> None:
        try:
            mark_of(snapshot, large=self._large)
        except (TornError, CodecError) as error:
            self.violations.append(f"{self.name}: version {snapshot.version}: {error}")
        self.applied.append((time.monotonic(), snapshot.version))
