"""What learner and reader processes have in common: journal, log, orders, and a quiet end."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import threading
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path

from redis_state_sync import encoder, fetcher, open_store
from redis_state_sync.events import Event, Failed
from redis_state_sync.store import Store
from tests.chaos.bounds import SETTINGS
from tests.chaos.journal import Journal
from tests.chaos.stalls import Watch

_PR_SET_PDEATHSIG = 1
# States are small, so that thin lines carry them: what is large is, all the same, to be shared.
_SMALLEST_SHARED = 8 << 10


class Process:
    """One of the processes under test. Orders are words on its standard input, a line each.

    Args:
        describe: What it is.
    """

    def __init__(self, describe: str) -> None:
        # A stopped process would never see that its standard input was closed.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for who started it.
        parser = ArgumentParser(description=describe)
        for name in ("--name", "--url", "--namespace", "--journal"):
            parser.add_argument(name, required=True)
        parser.add_argument("--writer")
        parser.add_argument("--large", action="store_true")
        parser.add_argument("--shares", action="store_true", help="use the node's cache")
        parser.add_argument("--seed", type=int, default=0)
        parser.add_argument("--every-s", type=float, default=0.05)
        self.options: Namespace = parser.parse_args()
        encoder.SMALLEST_SHARED = fetcher.SMALLEST_SHARED = _SMALLEST_SHARED
        # None: as users get it. 0: not at all.
        self.node_cache_bytes = None if self.options.shares else 0
        logging.basicConfig(
            stream=sys.stderr,
            level=logging.INFO,
            format="%(relativeCreated)9.0f %(levelname)s %(threadName)s %(message)s",
        )
        self.journal = Journal(Path(self.options.journal))
        self.journal.write("start", pid=os.getpid(), writer=self.options.writer)
        self.watch = Watch(lambda start, end: self.journal.write("stall", since=start, until=end))
        self.stop = threading.Event()
        self._orders: dict[str, Callable[[], None]] = {"stop": self.stop.set}

    def on(self, word: str, do: Callable[[], None]) -> None:
        """What to do on an order."""
        self._orders[word] = do

    def listen(self) -> None:
        """Takes orders from now on."""
        threading.Thread(target=self._listen, name="orders", daemon=True).start()

    def open_store(self) -> Store:
        """A store as a user would open it."""
        return open_store(
            self.options.url,
            stall_timeout_s=SETTINGS.stall_timeout_s,
            connect_timeout_s=SETTINGS.connect_timeout_s,
        )

    def note(self, event: Event) -> None:
        """An observer: failures are of interest to all."""
        if isinstance(event, Failed):
            self.journal.write(
                "failed", op=event.operation, category=event.category, text=event.message
            )

    def _listen(self) -> None:
        for line in sys.stdin:
            self._orders[line.strip()]()
        self.stop.set()
