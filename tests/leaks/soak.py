"""Publishes and fetches many times, and prints what is held meanwhile: ``soak.py CYCLES SAMPLES``.

A process of its own: what pytest and other tests hold would be counted, too.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from typing import Any

import numpy as np

from redis_state_sync import StatePublisher, StateSubscriber, open_store
from redis_state_sync.embedded import EmbeddedServer
from tests.leaks.census import Own, Server

WAIT = 30.0
WARM_UP = 1000


def state(number: int) -> dict[str, Any]:
    """Components of which two always change and one sometimes does; the fourth never does."""
    changed = {
        "rl_module/p": {"w": np.full(200, number, np.float32), "b": number},
        "counters": {"steps": number},
    }
    if number % 10 == 0:
        changed["env_to_module_connector"] = {"mean": np.full(20, float(number))}
    if number == 0:
        changed["rl_module/frozen"] = {"w": np.zeros(2000, np.float32)}
    return changed


class Cycles:
    """A publisher, a subscriber with a store of its own, and how often they did their work."""

    def __init__(self, url: str) -> None:
        self.publisher = StatePublisher(open_store(url), "soak", connect_timeout_s=WAIT)
        self.subscriber = StateSubscriber(open_store(url), "soak", poll_timeout_s=WAIT)
        self.done = 0

    def run(self, count: int) -> float:
        """So many cycles; returns the seconds that they took."""
        started = time.monotonic()
        for number in range(self.done, self.done + count):
            version = self.publisher.publish(state(number)).wait(WAIT)
            snapshot = self.subscriber.refresh(lambda s: [s[name] for name in s])
            assert snapshot is not None
            assert snapshot.version == version
            assert snapshot["counters"]["steps"] == number
        self.done += count
        took = time.monotonic() - started
        self.publisher.flush(WAIT)  # What the last version pushed out is dropped.
        return took

    def close(self) -> None:
        self.publisher.close()
        self.subscriber.close()


def main(cycles: int, samples: int) -> None:
    """Prints a line of JSON before, for each sample, and after."""
    with EmbeddedServer() as embedded:
        server = Server(embedded)
        say(server, rate=0.0)
        work = Cycles(embedded.url)
        work.run(WARM_UP)
        for _ in range(samples):
            took = work.run(cycles // samples)
            say(server, rate=cycles / samples / took)
        work.close()
        server.wait_for_connections(1)
        say(server, rate=0.0)


def say(server: Server, *, rate: float) -> None:
    """Keeps nothing: what is printed at once needs no memory later."""
    counts, used = server.counts(), server.used_memory()
    print(json.dumps({**asdict(Own.take()), **counts, "used": used, "rate": rate}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
