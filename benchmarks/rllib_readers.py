"""One reader of each arm, which applies by RLlib's own code. Imports all of RLlib."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from benchmarks import arms
from benchmarks.ray_session import RL_MODULE
from benchmarks.runner import Runner
from redis_state_sync import StateSubscriber


@dataclass(frozen=True)
class Fetched:
    """One fetch by one reader: seconds from its beginning, and a weight that it has now.

    Args:
        fetched: Until the bytes were in this process; ours are checked, too.
        applied: Until they were in the module's parameters.
        used: Until each was read once: memory that is mapped is paid for when it is first read.
        weight: By which it is told that the right ones have arrived.
    """

    fetched: float
    applied: float
    used: float
    weight: float


def _until_used(runner: Runner, started: float, fetched: float) -> Fetched:
    applied = time.perf_counter()
    runner.use()
    used = time.perf_counter()
    return Fetched(fetched - started, applied - started, used - started, runner.first_weight())


class RllibReader:
    """Ours, in a process without Ray's services: fetches and applies as our EnvRunner does."""

    def __init__(self, arm: str, places: arms.Places) -> None:
        self._arm = arm
        self._places = places
        self._subscriber: StateSubscriber | None = None
        self._runner: Runner | None = None

    def prepare(self, namespace: str, nbytes: int) -> None:
        """Begins anew, with a module of this size."""
        if self._subscriber is not None:
            self._subscriber.close()
        self._runner = None
        self._subscriber = arms.subscriber(self._arm, self._places, namespace)
        self._runner = Runner(nbytes)

    def fetch(self) -> Fetched:
        """Polls, fetches and applies what is new, and uses it."""
        subscriber, runner = self._subscriber, self._runner
        assert subscriber is not None
        assert runner is not None
        fetched = 0.0

        def apply(snapshot: Any) -> None:
            nonlocal fetched
            fetched = time.perf_counter()
            runner.apply(snapshot)

        started = time.perf_counter()
        if subscriber.refresh(apply) is None:
            raise RuntimeError("there was nothing to apply")
        return _until_used(runner, started, fetched)


class RayRllibReader:
    """Ray's: pulls and applies as `SingleAgentEnvRunner.sample` does."""

    def __init__(self, handle: Any) -> None:
        import ray

        self._get = ray.get
        self._handle = handle
        self._runner: Runner | None = None

    def prepare(self, nbytes: int, seq_no: int) -> None:
        """Begins anew, with a module of this size, that has all states up to `seq_no`."""
        self._runner = None
        self._runner = Runner(nbytes)
        self._runner._weights_seq_no = seq_no

    def fetch(self) -> Fetched:
        """Pulls and applies what is new, and uses it.

        The weights are taken out of the object store before `set_state` would do it itself, so
        that the time until they are here can be told from the time for applying them.
        """
        runner = self._runner
        assert runner is not None
        started = time.perf_counter()
        state = self._get(self._handle.pull_if_newer.remote(runner._weights_seq_no))
        state[RL_MODULE] = self._get(state[RL_MODULE])
        fetched = time.perf_counter()
        runner.set_state(state)
        return _until_used(runner, started, fetched)
