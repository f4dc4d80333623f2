"""A server that can be killed and comes back empty, or with what a file holds."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from redis_state_sync.embedded import EmbeddedServer

PATIENCE_S = 60.0


def steady_port() -> int:
    """A port of loopback that stays free: not one that the kernel gives to outgoing connections."""
    for _ in range(100):
        port = random.SystemRandom().randrange(20_000, 32_000)
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port
    raise OSError("no free port from 20000 to 32000")


def until(true: Callable[[], Any], what: str, timeout: float = PATIENCE_S) -> None:
    """Waits for a condition. A server that does not answer yet has not met it."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            if true():
                return
        except redis.RedisError:
            pass
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {timeout:g} s")
        time.sleep(0.005)


class Server:
    """One of our own. The operator's client does not go through any proxy.

    Args:
        folder: For the lines of its configuration that change.
    """

    def __init__(self, folder: Path) -> None:
        self.port = steady_port()
        self._extra = folder / f"server-{self.port}.conf"
        self._extra.write_text("")
        self._server = EmbeddedServer(
            host="127.0.0.1",
            port=self.port,
            config=(
                "repl-diskless-sync-delay 0",
                "shutdown-on-sigterm nosave force",
                "loglevel notice",
                f"include {self._extra}",
            ),
        )
        self.socket = str(self._server.socket_path)
        self.url = self._server.url
        self.client = self.new_client()

    @property
    def data(self) -> Path:
        """Its working folder."""
        return Path(self.socket).parent

    @property
    def up(self) -> bool:
        """Whether its process lives."""
        return self._server.pid is not None

    def new_client(self) -> redis.Redis:
        """A client of the operator's."""
        return redis.Redis(
            unix_socket_path=self.socket,
            socket_timeout=PATIENCE_S,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
        )

    def set(self, **config: Any) -> None:
        """CONFIG SET; an underscore stands for a dash."""
        for name, value in config.items():
            self.client.config_set(name.replace("_", "-"), value)

    def info(self, name: str) -> Any:
        """One value of INFO."""
        return self.client.info("everything")[name]

    def stop(self, number: signal.Signals) -> None:
        """Sends it a signal, such as SIGSTOP."""
        pid = self._server.pid
        assert pid is not None, "the server is down"
        os.kill(pid, number)

    def kill(self) -> None:
        """SIGKILL. What it wrote to disk stays."""
        self._server.kill()
        self.client.close()

    def start(self, *lines: str) -> None:
        """Starts it, with further lines of configuration. It loads what its folder holds."""
        self._extra.write_text("\n".join(lines) + "\n")
        self._server.start()

    def start_empty(self) -> None:
        """Starts it without any data."""
        self.forget_files()
        self.start()

    def save(self) -> None:
        """Writes a dump of what it holds now."""
        self.client.bgsave()
        until(lambda: not self.info("rdb_bgsave_in_progress"), "a dump")
        assert self.info("rdb_last_bgsave_status") == "ok"

    def forget_files(self) -> None:
        """What is on disk is of no use any more."""
        (self.data / "dump.rdb").unlink(missing_ok=True)
        shutil.rmtree(self.data / "appendonlydir", ignore_errors=True)

    def loaded(self) -> None:
        """Waits until it serves."""
        until(self.client.ping, "a server that serves")

    def close(self) -> None:
        """Ends it."""
        self.client.close()
        if self.up:
            self.stop(signal.SIGCONT)
        self._server.stop()
