"""What `doctor` asks a server. Nothing here judges, and nothing that is asked changes anything."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from redis_state_sync.endpoint import Endpoint
from redis_state_sync.errors import StorePermissionError
from redis_state_sync.history import History
from redis_state_sync.keys import Keys
from redis_state_sync.redis_store import RedisStore

# Where rights are tried if no namespace is given.
PROBE = "redis-state-sync.doctor"
_PINGS = 50
_BETWEEN_S = 0.002
_PARAMETERS = (
    "appendfsync",
    "client-output-buffer-limit",
    "client-query-buffer-limit",
    "maxmemory-clients",
    "min-replicas-to-write",
    "proto-max-bulk-len",
    "protected-mode",
    "save",
    "timeout",
)


@dataclass(frozen=True, slots=True)
class Facts:
    """A server at one moment, as its client sees it.

    Args:
        endpoint: How it was reached.
        with_password: Whether the client had one to show.
        info: Of INFO.
        config: Of CONFIG GET; None if the user may not ask.
        user: Of ACL WHOAMI; None if the server knows none, or does not say.
        latencies_s: Seconds that each of some PINGs took, sorted.
        clock_ahead_s: Seconds that the server's clock is ahead of ours.
        denied: The commands that the user may not run of those that its role needs.
        wanted_bytes: What the namespaces take when their learners publish as before: of each the
            newest state, times the number of versions and one more, and what is pinned.
        pins: How many there are.
        counted: Whether the namespaces could be counted at all.
        role: What the user is to be.
    """

    endpoint: Endpoint
    with_password: bool
    info: Mapping[str, str]
    config: Mapping[str, str] | None
    user: str | None
    latencies_s: Sequence[float] = ()
    clock_ahead_s: float = 0.0
    denied: Sequence[str] = ()
    wanted_bytes: int = 0
    pins: int = 0
    counted: bool = True
    role: str = "runner"

    @property
    def is_local(self) -> bool:
        """Whether what is sent stays on this host."""
        return self.endpoint.scheme == "unix" or all(
            host == "localhost" or _is_loopback(host) for host, _ in self.endpoint.hosts
        )

    def number(self, name: str, default: int = 0) -> int:
        """A number of INFO."""
        text = self.info.get(name, "")
        return int(text) if text.isdigit() else default

    def parameter(self, name: str) -> int | None:
        """A number of CONFIG GET; None if it is not known."""
        text = (self.config or {}).get(name, "")
        return int(text) if text.isdigit() else None


def gather(
    store: RedisStore,
    endpoint: Endpoint,
    *,
    with_password: bool,
    role: str,
    namespace: str | None,
    timeout: float,
) -> Facts:
    """Asks all of it.

    Raises:
        StoreError: If the server can not be reached. What it refuses is no error.
    """
    info = _info(_first(store, ("INFO",), timeout))
    wanted, pins, counted = _needs(store, namespace, timeout)
    latencies, ahead = _times(store, timeout)
    user = _first(store, ("ACL", "WHOAMI"), timeout)
    return Facts(
        endpoint,
        with_password,
        info,
        _config(store, timeout),
        user.decode("utf-8", "replace") if isinstance(user, bytes) else None,
        latencies,
        ahead,
        denied_to(store, role, Keys(namespace or PROBE), timeout),
        wanted,
        pins,
        counted,
        role,
    )


def denied_to(store: RedisStore, role: str, keys: Keys, timeout: float) -> list[str]:
    """The commands that the user may not run of those that a role needs.

    Each is tried in a way that changes nothing: on keys that are not there, or with a version that
    can not be stored.
    """
    blob = keys.blob("0" * 32)
    reading = [
        ("XREVRANGE", keys.versions, "+", "-", "COUNT", 1),
        ("GET", blob),
        ("TIME",),
    ]
    writing = [
        ("XADD", keys.versions, "0-0", "manifest", ""),
        ("XDEL", keys.versions, "0-0"),
        ("SET", blob, "", "XX"),
        ("EXPIRE", blob, 1),
        ("PERSIST", blob),
        ("EXISTS", blob),
        ("UNLINK", blob),
        ("PTTL", keys.versions),
        ("HGET", keys.readers, "!doctor"),
        ("HDEL", keys.readers, "!doctor"),
        ("HGETALL", keys.pins),
    ]
    operating = [
        ("SCAN", "0", "COUNT", 1),
        ("INFO", "server"),
        ("HGETALL", keys.readers),
        ("HGET", keys.pinned, "0-0"),
        ("HDEL", keys.pins, "!doctor"),
        ("PERSIST", blob),
        ("EXPIRE", blob, 1),
        ("PTTL", keys.versions),
        ("UNLINK", blob),
    ]
    commands = {
        "runner": reading,
        "learner": reading + writing,
        "operator": reading + operating,
    }[role]
    replies = store.ask(commands, timeout=timeout)
    return [
        str(command[0])
        for command, reply in zip(commands, replies, strict=True)
        if isinstance(reply, StorePermissionError)
    ]


def _first(store: RedisStore, command: tuple[Any, ...], timeout: float) -> Any:
    return store.ask([command], timeout=timeout)[0]


def _info(reply: Any) -> dict[str, str]:
    if not isinstance(reply, bytes):
        return {}
    lines = reply.decode("utf-8", "replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def _config(store: RedisStore, timeout: float) -> dict[str, str] | None:
    found: dict[str, str] = {}
    for reply in store.ask([("CONFIG", "GET", name) for name in _PARAMETERS], timeout=timeout):
        if isinstance(reply, StorePermissionError):
            return None
        if isinstance(reply, dict):
            reply = [part for pair in reply.items() for part in pair]
        if isinstance(reply, list) and len(reply) >= 2:
            found[reply[0].decode()] = reply[1].decode("utf-8", "replace")
    return found or None


def _times(store: RedisStore, timeout: float) -> tuple[list[float], float]:
    latencies = []
    for _ in range(_PINGS):
        started = time.perf_counter()
        _first(store, ("PING",), timeout)
        latencies.append(time.perf_counter() - started)
        time.sleep(_BETWEEN_S)
    before = time.time()
    server = store.time_ms(timeout=timeout) / 1000
    return sorted(latencies), server - (before + time.time()) / 2


def _needs(store: RedisStore, namespace: str | None, timeout: float) -> tuple[int, int, bool]:
    try:
        names = [namespace] if namespace else store.namespaces(timeout=timeout)
        wanted = pins = 0
        for name in names:
            history = History(store, name, timeout_s=timeout)
            versions = history.versions()
            sizes = [v.manifest.size for v in versions if v.manifest is not None and not v.pins]
            wanted += max(sizes, default=0) * (len(sizes) + 1)
            wanted += sum(v.manifest.size for v in versions if v.manifest and v.pins)
            pins += len(history.pins())
    except StorePermissionError:
        return 0, 0, False
    return wanted, pins, True


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
