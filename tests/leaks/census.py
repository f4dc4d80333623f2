"""What this process, and the server that it uses, hold: counted."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import redis

from redis_state_sync.embedded import EmbeddedServer

_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Own:
    """What this process holds.

    `objects` are those that Python's garbage collector knows, `blocks` all of Python's own
    allocations, its free lists included, `rss` is in bytes.
    """

    threads: int
    fds: int
    shared_memory: int
    children: int
    objects: int
    blocks: int
    rss: int

    @classmethod
    def take(cls) -> Own:
        """Counts, after what is garbage was collected."""
        gc.collect()
        return cls(
            threads=threading.active_count(),
            fds=len(os.listdir("/proc/self/fd")),
            shared_memory=_shared_memory("self"),
            children=len(children(os.getpid())),
            objects=len(gc.get_objects()),
            blocks=sys.getallocatedblocks(),
            rss=int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE,
        )

    @property
    def counts(self) -> dict[str, int]:
        """What must be the same to the unit."""
        return {k: v for k, v in asdict(self).items() if k not in ("objects", "blocks", "rss")}


class Server:
    """What a server holds, seen over a connection that it counts, too."""

    def __init__(self, server: EmbeddedServer) -> None:
        self._pid = server.pid
        self._client = redis.Redis(unix_socket_path=str(server.socket_path))

    def counts(self) -> dict[str, int]:
        """What must be the same to the unit."""
        clients: Any = self._client.info("clients")
        return {
            "keys": int(self._client.dbsize()),  # type: ignore[arg-type]
            "connections": clients["connected_clients"],
            "server_fds": len(os.listdir(f"/proc/{self._pid}/fd")),
            "server_shared_memory": _shared_memory(str(self._pid)),
        }

    def used_memory(self) -> int:
        """Bytes."""
        self._client.memory_purge()
        memory: Any = self._client.info("memory")
        return int(memory["used_memory"])

    def cut_others(self) -> None:
        """Closes every connection but this one."""
        self._client.client_kill_filter(_type="normal", skipme=True)

    def readers(self, namespace: str) -> list[str]:
        """Who left a note in a namespace."""
        names: Any = self._client.hkeys(f"rss:{{{namespace}}}:readers")
        return sorted(name.decode() for name in names)

    def wait_for_connections(self, count: int, timeout: float = 20.0) -> None:
        """Waits until it has noticed which connections were closed."""
        deadline = time.monotonic() + timeout
        while self.counts()["connections"] > count:
            assert time.monotonic() < deadline, self.counts()
            time.sleep(0.01)

    def close(self) -> None:
        """Ends the connection."""
        self._client.close()


def children(pid: int) -> list[int]:
    """Processes that this one started and has not reaped."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            found += map(int, (task / "children").read_text().split())
        except FileNotFoundError:
            pass  # A thread that has ended meanwhile.
    return found


def _shared_memory(pid: str) -> int:
    """Mappings of shared memory files. (The folder itself is everybody's, Ray's too.)"""
    return Path(f"/proc/{pid}/maps").read_text().count("/dev/shm/")
