"""A real server in the place of the one that pages mean by its usual address."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from redis_state_sync.embedded import find_server
from redis_state_sync.errors import SettingsError
from redis_state_sync.testing import EmbeddedServer, skip_or_fail

LOCAL = "redis://localhost:6379/0"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def local_server() -> Iterator[EmbeddedServer]:
    """A real server on a Unix socket; skips where there is no binary, and fails instead in CI."""
    try:
        find_server()
    except SettingsError as error:
        skip_or_fail(str(error))
    with EmbeddedServer() as server:
        yield server
