"""How quick a line is by itself: on a machine that is short of CPUs even a ping takes its time."""

from __future__ import annotations

import socket
import threading
import time

from tests.chaos.bounds import SETTINGS
from tests.chaos.stalls import Interval

_EVERY_S = 0.02
# A poll takes up to two round trips, and a connection before that.
SLOW_S = SETTINGS.poll_timeout_s / 2
_PATIENCE_S = 5.0


class LineProbe:
    """Pings the server through a proxy, on a thread, until it is closed.

    A ping that is never answered, or refused, says nothing about the machine and is left out.

    Args:
        port: The proxy's.
    """

    def __init__(self, port: int) -> None:
        self.slow: list[Interval] = []
        """When pings took so long that a poll might have been given up."""
        self._port = port
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="line-probe")
        self._thread.start()

    def close(self) -> None:
        """Ends it."""
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._done.is_set():
            try:
                with socket.create_connection(("127.0.0.1", self._port), _PATIENCE_S) as line:
                    self._ping(line)
            except OSError:
                self._done.wait(_EVERY_S)

    def _ping(self, line: socket.socket) -> None:
        while not self._done.is_set():
            sent, reply = time.monotonic(), b""
            line.sendall(b"PING\r\n")
            while not reply.endswith(b"\r\n"):
                part = line.recv(100)
                if not part:
                    return
                reply += part
            now = time.monotonic()
            if now - sent > SLOW_S:
                self.slow.append((sent, now))
            self._done.wait(_EVERY_S)
