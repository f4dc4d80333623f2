"""The arms: what is compared, what it is called, and how ours differ from each other."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from redis_state_sync import StatePublisher, StateSubscriber, open_store

RAY, TCP, UNIX, TRACKING, NODE = "ray", "tcp", "unix", "tracking", "node"
CLIENT, RAW_TCP, RAW_UNIX, MEMCPY = "redis-py", "raw-tcp", "raw-unix", "memcpy"

TITLES = {
    RAY: "Ray's state server",
    TCP: "ours, TCP",
    UNIX: "ours, Unix socket",
    TRACKING: "ours, TCP, tracking",
    NODE: "ours, Unix socket, node cache",
    CLIENT: "redis-py's `get`",
    RAW_TCP: "limit: bare TCP",
    RAW_UNIX: "limit: bare Unix socket",
    MEMCPY: "limit: memcpy",
}


@dataclass(frozen=True)
class Places:
    """One server of ours, by the ways that it can be reached.

    Args:
        port: On 127.0.0.1.
        socket_path: Of its Unix socket.
    """

    port: int
    socket_path: str

    def url(self, arm: str) -> str:
        """The store URL of one of our arms."""
        if arm == TCP:
            return f"redis://127.0.0.1:{self.port}"
        if arm == TRACKING:
            return f"redis://127.0.0.1:{self.port}?protocol=3"
        return f"unix://{self.socket_path}"

    def address(self, arm: str) -> tuple[str, int] | str:
        """The same for a bare socket."""
        return ("127.0.0.1", self.port) if arm in (TCP, RAW_TCP) else self.socket_path


def offered(arm: str) -> bool:
    """Whether this version of the package has what an arm needs."""
    return arm != NODE or "node_cache_bytes" in inspect.signature(StateSubscriber).parameters


def extras(arm: str, cls: Callable[..., Any]) -> dict[str, Any]:
    """What an arm passes to `StatePublisher` or `StateSubscriber` besides what all arms pass.

    The node cache is the package's default; without it, arms differ in their transport alone.
    """
    chosen = {"node_cache_bytes": None if arm == NODE else 0, "tracking": arm == TRACKING}
    return {k: v for k, v in chosen.items() if k in inspect.signature(cls).parameters}


def publisher(arm: str, places: Places, namespace: str, **settings: Any) -> StatePublisher:
    """A publisher as an arm's learner has it."""
    store = open_store(places.url(arm), stall_timeout_s=5.0)
    return StatePublisher(store, namespace, **settings, **extras(arm, StatePublisher))


def subscriber(arm: str, places: Places, namespace: str) -> StateSubscriber:
    """A subscriber as an arm's EnvRunner has it; more patient, on a machine that is kept busy."""
    store = open_store(places.url(arm), stall_timeout_s=5.0)
    return StateSubscriber(
        store, namespace, poll_timeout_s=5.0, first_timeout_s=10.0, **extras(arm, StateSubscriber)
    )
