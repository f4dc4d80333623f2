"""Servers that run the files of `deploy/`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.deploy.server import Server, find_server, render_acl

Boot = Callable[..., Server]


@pytest.fixture(scope="module", params=["valkey", "redis"])
def kind(request: pytest.FixtureRequest) -> str:
    """Both families: Valkey from its wheel, and the machine's Redis."""
    return str(request.param)


def rendered(folder: Path, version: tuple[int, ...]) -> Path:
    """A users file as `boot` takes it, for a server of this version."""
    acl = render_acl(folder / "users.acl", version)
    with acl.open("a") as file:
        file.write("user root on >root ~* &* +@all\n")
    return acl


@pytest.fixture
def boot(kind: str, tmp_path: Path) -> Iterator[Boot]:
    """Starts the profile with the rendered users, plus `root`, who may do everything."""
    binary, version = find_server(kind)
    acl = rendered(tmp_path, version)
    servers: list[Server] = []

    def start(*options: str, port: int = 0, additions: Sequence[Path] = ()) -> Server:
        given = ("--aclfile", str(acl), *options)
        servers.append(Server(binary, tmp_path, *given, port=port, additions=additions))
        return servers[-1].start()

    yield start
    for server in servers:
        server.close()
