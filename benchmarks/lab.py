"""The servers of one run: the bundled Valkey, reached by TCP and by a Unix socket, and Ray's."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import redis

from benchmarks.arms import Places
from benchmarks.ray_session import OBJECT_STORE_BYTES, RayServer, ray_session
from redis_state_sync.embedded import EmbeddedServer


class Lab:
    """What a section finds when it begins.

    Args:
        server: Ours.
        ray: Ray's.
        places: Where ours is.
    """

    def __init__(self, server: EmbeddedServer, ray: RayServer, places: Places) -> None:
        self.server = server
        self.ray = ray
        self.notes: list[str] = []
        """What a section leaves out, and why."""
        self.places = places

    @property
    def server_pid(self) -> int:
        """Ours."""
        assert self.server.pid is not None
        return self.server.pid

    def client(self) -> redis.Redis:
        """A redis-py client of our server."""
        return redis.Redis(unix_socket_path=self.places.socket_path)

    def empty(self) -> None:
        """Forgets all states, between cases that are large together."""
        with self.client() as client:
            client.flushall()

    def bytes_sent(self) -> int:
        """By our server, since it started."""
        with self.client() as client:
            return int(client.info("stats")["total_net_output_bytes"])


@contextlib.contextmanager
def open_lab(object_store_bytes: int = OBJECT_STORE_BYTES) -> Iterator[Lab]:
    """Starts both servers and ends them."""
    with contextlib.ExitStack() as stack:
        port = free_port()
        server = stack.enter_context(EmbeddedServer(host="127.0.0.1", port=port))
        stack.enter_context(ray_session(object_store_bytes))
        ray_server = RayServer()
        stack.callback(ray_server.close)
        yield Lab(server, ray_server, Places(port, str(server.socket_path)))


def free_port() -> int:
    """A port on 127.0.0.1 that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
