"""fakeredis behind a TCP port, with a limit that is enforced rather than met by accident."""

from __future__ import annotations

import importlib
import re
import threading
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import redis

from redis_state_sync.errors import DecodeError
from redis_state_sync.manifest import Manifest

FAKE_SERVER_LIMIT_BYTES = 100_000
"""Bytes of one state (all components, encoded) that `redis_state_fake_server` takes."""


OLDEST_FAKEREDIS = (2, 41)


def import_fakeredis() -> Any:
    """Imports fakeredis.

    Raises:
        ImportError: If it is missing or too old; the message holds the line that installs it.
    """
    remedy = "pip install 'redis-state-sync[testing]'"
    try:
        import fakeredis
    except ImportError as error:
        raise ImportError(
            f"this fixture of redis_state_sync.testing needs fakeredis: {remedy}"
        ) from error
    found = version("fakeredis")
    if tuple(int(part) for part in re.findall(r"\d+", found)[:2]) < OLDEST_FAKEREDIS:
        raise ImportError(
            f"fakeredis {found} takes versions that a real server refuses, and this fixture of "
            f"redis_state_sync.testing needs a newer one: {remedy}"
        )
    return fakeredis


class FakeStateServer:
    """fakeredis' TCP server on a free loopback port, on threads of this process.

    It writes to sockets without waiting, so that replies larger than a socket buffer are lost:
    a state above the limit is refused, in whichever process it is published.

    Args:
        limit_bytes: The most bytes of one state.

    Raises:
        ImportError: If fakeredis is missing.
    """

    def __init__(self, *, limit_bytes: int = FAKE_SERVER_LIMIT_BYTES) -> None:
        import_fakeredis()
        self.limit_bytes = limit_bytes
        self.refused: list[str] = []
        """What was refused and why; the fixture fails a test that leaves something here."""
        self._server = _tcp_server(self._objection)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="redis-state-fake", daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        """The store URL for processes on this host."""
        return f"redis://127.0.0.1:{self._server.server_address[1]}/0"

    def close(self) -> None:
        """Ends the server and its connections."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)

    def __enter__(self) -> FakeStateServer:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _objection(self, command: list[bytes]) -> str | None:
        name, size = command[0].upper(), 0
        if name == b"SET" and len(command) > 2:
            size = len(command[2])
        elif name == b"XADD":
            try:
                manifest = Manifest.decode(command[-1])
            except DecodeError:
                return None
            size = sum(component.size for component in manifest.components.values())
        if size <= self.limit_bytes:
            return None
        objection = (
            f"a state of {size} bytes or more: redis_state_fake_server takes up to "
            f"{self.limit_bytes}. Use the fixture redis_state_server (a real server): "
            "pip install 'redis-state-sync[embedded]'"
        )
        if objection not in self.refused:
            self.refused.append(objection)
        return objection


def _tcp_server(objection: Callable[[list[bytes]], str | None]) -> Any:
    tcp: Any = importlib.import_module(import_fakeredis().TcpFakeServer.__module__)

    class Handler(tcp.TCPFakeRequestHandler):  # type: ignore[misc]
        def setup(self) -> None:
            super().setup()
            socket: Any = self.current_client.get_socket()
            process = socket._process_command

            def checked(fields: list[bytes]) -> None:
                text = objection(fields) if fields else None
                if text is None:
                    process(fields)
                else:
                    socket.put_response(redis.ResponseError(text))

            socket._process_command = checked

    server = tcp.TcpFakeServer(("127.0.0.1", 0), bind_and_activate=True)
    server.RequestHandlerClass = Handler
    # A handler notices the end only between two looks at its socket: do not wait for all of them.
    server.daemon_threads = True
    server.block_on_close = False
    return server
