"""Who polls, in processes of their own: what an EnvRunner does at the top of each `sample()`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import redis

from benchmarks import arms
from benchmarks.limits import PingPong
from benchmarks.loops import Latencies, closed_loop, in_threads

# Under which redis-py's naive client finds a version.
CLIENT_KEY = "benchmark:version"


class Poller:
    """One process that polls by any of the arms that need no Ray.

    Args:
        places: Of our server.
        namespace: Where something is published already.
    """

    def __init__(self, places: arms.Places, namespace: str) -> None:
        self._places = places
        self._namespace = namespace
        self._calls: dict[str, Callable[[], Any]] = {}

    def prepare(self, arm: str) -> None:
        """Connects, and fetches what there is."""
        if arm not in self._calls:
            self._calls[arm] = self._call(arm)

    def poll(self, arm: str, seconds: float) -> Latencies:
        """Polls in a closed loop."""
        return closed_loop(self._calls[arm], seconds)

    def poll_times(self, arm: str, count: int) -> None:
        """Polls so many times."""
        call = self._calls[arm]
        for _ in range(count):
            call()

    def _call(self, arm: str) -> Callable[[], Any]:
        if arm in (arms.RAW_TCP, arms.RAW_UNIX):
            return PingPong(self._places.address(arm)).once
        if arm == arms.CLIENT:
            client = redis.Redis.from_url(self._places.url(arms.TCP))
            return lambda: client.get(CLIENT_KEY)
        subscriber = arms.subscriber(arm, self._places, self._namespace)
        subscriber.wait_for(_drop, timeout=30)
        return lambda: subscriber.refresh(_unexpected)


class RayPoller:
    """One actor that asks Ray's state server, as `SingleAgentEnvRunner.sample` does."""

    def __init__(self, handle: Any, seq_no: int) -> None:
        import ray

        self._get = ray.get
        self._handle = handle
        self._seq_no = seq_no

    def poll(self, threads: int, seconds: float) -> Latencies:
        """Polls in so many closed loops at once."""
        return in_threads(self._once, threads, seconds)

    def poll_times(self, count: int) -> None:
        """Polls so many times."""
        for _ in range(count):
            self._once()

    def _once(self) -> None:
        if self._get(self._handle.pull_if_newer.remote(self._seq_no)) is not None:
            raise RuntimeError("the poll was to find nothing new")


def _drop(snapshot: Any) -> None:
    pass


def _unexpected(snapshot: Any) -> None:
    raise RuntimeError("the poll was to find nothing new")
