"""What the runs of a grid share: one Ray, and one Valkey on the loopback."""

from __future__ import annotations

import contextlib
import logging
import os
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks import grid, machine
from benchmarks.lab import free_port
from benchmarks.ray_session import ray_session
from benchmarks.run_store import RunKey, RunStore
from redis_state_sync.embedded import EmbeddedServer

_OBJECT_STORE_BYTES = 300_000_000

# Before torch is imported: the driver learns with one thread, as actors of Ray do everything.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Ray's C++ side would tell of every actor that ends.
os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")


class RunLab(contextlib.AbstractContextManager["RunLab"]):
    """Starts both servers, and ends them."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._ray = contextlib.ExitStack()
        self.url = ""

    def __enter__(self) -> RunLab:
        port = free_port()
        self._stack.enter_context(EmbeddedServer(host="127.0.0.1", port=port))
        self.url = f"redis://127.0.0.1:{port}"
        self._start_ray()
        return self

    def __exit__(self, *_: object) -> None:
        self._ray.close()
        self._stack.close()

    def restart_ray(self) -> None:
        """After a run that failed: nothing of it is left."""
        self._ray.close()
        self._start_ray()

    def _start_ray(self) -> None:
        self._ray = contextlib.ExitStack()
        self._ray.enter_context(ray_session(_OBJECT_STORE_BYTES))


def make_missing(
    plan: Sequence[RunKey],
    store: RunStore,
    make: Callable[[RunKey, str], dict[str, Any]],
    at_most_s: Callable[[RunKey], float],
    say: Callable[[str], None],
) -> list[RunKey]:
    """Makes the runs of a plan that are not there, within one Ray.

    Args:
        plan: All runs, in order.
        store: Where they are kept.
        make: Makes one, given the URL of the server.
        at_most_s: After which a run counts as hung.
        say: Told of each run.

    Returns:
        Those that failed twice.
    """
    # It tells of each Algorithm that what is chosen here is the default.
    logging.getLogger("ray.rllib").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    missing = [key for key in plan if store.load(key) is None]
    say(f"{len(plan)} runs, {len(plan) - len(missing)} of them are there")
    if not missing:
        return []
    started = time.monotonic()

    def execute(key: RunKey) -> dict[str, Any]:
        with grid.at_most(at_most_s(key)):
            return make(key, lab.url)

    with RunLab() as lab:
        tally = grid.go(missing, execute, store, say, lab.restart_ray)
    say(
        f"{len(tally.made)} made, {len(tally.failed)} failed in "
        f"{time.monotonic() - started:.0f} s, load {machine.load()[0]}"
    )
    return tally.failed
