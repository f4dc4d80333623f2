"""What `doctor` asks a server. Nothing here judges, and nothing that is asked changes anything."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from redis_state_sync.cli.rights import PROBE, refused_to
from redis_state_sync.endpoint import Endpoint
from redis_state_sync.errors import StorePermissionError
from redis_state_sync.history import History
from redis_state_sync.keys import Keys
from redis_state_sync.redis_store import RedisStore

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
    "tcp-keepalive",
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
        unknown: Of the same, those that the server does not know.
        open_to_all: Whether the user that nobody has to log in as may do everything.
        wanted_bytes: What the namespaces take when their learners publish as before: of each the
            newest state, times the number of versions and one more, and what is pinned.
        largest_bytes: What the largest state takes.
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
    unknown: Sequence[str] = ()
    open_to_all: bool = False
    wanted_bytes: int = 0
    largest_bytes: int = 0
    pins: int = 0
    counted: bool = True
    role: str = "runner"

    @property
    def is_local(self) -> bool:
        """Whether what is sent stays on this host."""
        return self.endpoint.scheme == "unix" or all(
            host == "localhost" or _is_loopback(host) for host, _ in self.endpoint.hosts
        )

    @property
    def writes_to_disk(self) -> bool:
        """Whether what is stored outlives a restart, as far as that is known."""
        saves = (self.config or {}).get("save", "?") != ""
        return saves or self.info.get("aof_enabled") == "1"

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
    needs = _needs(store, namespace, timeout)
    latencies, ahead = _times(store, timeout)
    user = _first(store, ("ACL", "WHOAMI"), timeout)
    refused = refused_to(store, role, Keys(namespace or PROBE), timeout)
    return Facts(
        endpoint,
        with_password,
        info,
        _config(store, timeout),
        user.decode("utf-8", "replace") if isinstance(user, bytes) else None,
        latencies_s=latencies,
        clock_ahead_s=ahead,
        denied=[n for n, error in refused.items() if isinstance(error, StorePermissionError)],
        unknown=[n for n, error in refused.items() if "unknown command" in str(error)],
        open_to_all=_lets_everybody_in(_first(store, ("ACL", "GETUSER", "default"), timeout)),
        wanted_bytes=needs.bytes,
        largest_bytes=needs.largest,
        pins=needs.pins,
        counted=needs.counted,
        role=role,
    )


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
    match _first(store, ("TIME",), timeout):
        case [seconds, microseconds]:
            server = int(seconds) + int(microseconds) / 1_000_000
            return sorted(latencies), server - (before + time.time()) / 2
    return sorted(latencies), 0.0  # It may not be asked, which is found elsewhere.


def _lets_everybody_in(reply: Any) -> bool:
    """Whether ACL GETUSER default says so. Who may not ask, or can not, is told no."""
    if isinstance(reply, list):
        reply = dict(zip(reply[::2], reply[1::2], strict=False))
    if not isinstance(reply, dict):
        return False
    flags, commands = set(reply.get(b"flags", ())), bytes(reply.get(b"commands", b""))
    return {b"on", b"nopass"} <= flags and b"+@all" in commands.split()


@dataclass(slots=True)
class _Needs:
    bytes: int = 0
    largest: int = 0
    pins: int = 0
    counted: bool = True


def _needs(store: RedisStore, namespace: str | None, timeout: float) -> _Needs:
    found = _Needs()
    try:
        for name in [namespace] if namespace else store.namespaces(timeout=timeout):
            history = History(store, name, timeout_s=timeout)
            versions = history.versions()
            sizes = [v.manifest.size for v in versions if v.manifest is not None and not v.pins]
            found.bytes += max(sizes, default=0) * (len(sizes) + 1)
            found.bytes += sum(v.manifest.size for v in versions if v.manifest and v.pins)
            found.largest = max([found.largest, *sizes])
            found.pins += len(history.pins())
    except StorePermissionError:
        return _Needs(counted=False)
    return found


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
