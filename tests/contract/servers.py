"""Real servers, with TLS and as sentinel: each on loopback, in a folder of its own."""

from __future__ import annotations

import datetime
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import redis
import trustme

from redis_state_sync.embedded import BINARY_ENV, EmbeddedServer, find_server
from redis_state_sync.errors import SettingsError
from redis_state_sync.testing import skip_or_fail

WAIT = 20.0


def until(true: Callable[[], Any], what: str, timeout: float = WAIT) -> None:
    """Waits for a condition; a server that does not answer yet has not met it."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        try:
            if true():
                return
        except redis.RedisError:
            pass
        time.sleep(0.01)
    raise AssertionError(f"{what}: not within {timeout:g} s")


def redis_binary() -> Path:
    """Debian's redis-server, which is built with TLS; skips where there is none."""
    found = shutil.which("redis-server")
    if found is None:
        skip_or_fail("needs redis-server on PATH: apt-get install redis-server")
    return Path(str(found))


def valkey_binary() -> Path:
    """The server that `embedded://` starts; skips where there is none."""
    try:
        return find_server()
    except SettingsError as error:
        skip_or_fail(str(error))
        raise


def sentinel_binary(folder: Path) -> Path:
    """The same under the name by which it knows that it is a sentinel."""
    link = folder / "redis-sentinel"
    link.symlink_to(redis_binary())
    return link


def free_ports(count: int) -> list[int]:
    """TCP ports of loopback that nobody listens on, none of them twice."""
    with ExitStack() as stack:
        listeners = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)
        ]
        return [int(listener.getsockname()[1]) for listener in listeners]


def free_port() -> int:
    """A TCP port of loopback that nobody listens on."""
    return free_ports(1)[0]


def start(binary: Path, *config: str, port: int = 0, password: str | None = None) -> EmbeddedServer:
    """Starts a server of this binary, on a TCP port of loopback as well if one is given."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(BINARY_ENV, str(binary))
        host = "127.0.0.1" if port else None
        return EmbeddedServer(host=host, port=port, password=password, config=config)


@dataclass(frozen=True)
class Certificate:
    """Files of a certificate, its chain, and its key."""

    cert: Path
    key: Path


class Authority:
    """A certificate authority of one's own, and what it signed.

    Args:
        folder: Where the files are.
        name: What they are called.
    """

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._folder = folder
        self._ca = trustme.CA(organization_name=name)
        self.file = folder / f"{name}.pem"
        self._ca.cert_pem.write_to_path(str(self.file))

    def issue(self, *names: str, expired: bool = False) -> Certificate:
        """A certificate for these host names or addresses."""
        now = datetime.datetime.now(datetime.timezone.utc)
        day = datetime.timedelta(days=1)
        dates = {"not_before": now - 2 * day, "not_after": now - day} if expired else {}
        issued = self._ca.issue_cert(*names, **dates)
        stem = self._folder / f"{self.file.stem}-{len(os.listdir(self._folder))}"
        found = Certificate(stem.with_suffix(".pem"), stem.with_suffix(".key"))
        found.cert.write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(str(found.key))
        return found


def tls_lines(authority: Authority, own: Certificate, *, clients: str = "no") -> tuple[str, ...]:
    """Lines of a server's configuration.

    Args:
        authority: Whose certificates of clients and other servers it accepts.
        own: What it shows.
        clients: Whether clients must show a certificate: ``no``, ``optional`` or ``yes``.
    """
    return (
        f"tls-cert-file {own.cert}",
        f"tls-key-file {own.key}",
        f"tls-ca-cert-file {authority.file}",
        f"tls-auth-clients {clients}",
    )


@contextmanager
def tls_server(authority: Authority, own: Certificate, *, clients: str = "no") -> Iterator[str]:
    """A server with a TLS port only; yields ``127.0.0.1:<port>``."""
    port = free_port()
    lines = ("bind 127.0.0.1", f"tls-port {port}", *tls_lines(authority, own, clients=clients))
    with start(redis_binary(), *lines):
        yield f"127.0.0.1:{port}"


def options(**values: object) -> str:
    """Options of a store URL, from the question mark on."""
    return "?" + "&".join(f"{name}={quote(str(value))}" for name, value in values.items())
