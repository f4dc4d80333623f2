"""A group of data nodes and sentinels, started by the scripts of `deploy/redis`."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.contract.servers import free_ports, until
from tests.deploy.conftest import rendered
from tests.deploy.server import DEPLOY, PASSWORDS, find_server

SENTINELS = 3
CLIENT_PASSWORD = "sentinel-client-password-of-a-test"
# Who may do everything, on data nodes and sentinels: only tests have that.
ROOT = ("--user", "root", "on", ">root", "~*", "&*", "+@all")


@dataclass
class Group:
    """Data nodes and sentinels by their ports."""

    folder: Path
    environment: dict[str, str]
    nodes: list[int]
    sentinels: list[int]
    processes: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, port: int) -> None:
        """Starts the data node or sentinel of this port, as a container does."""
        own = self.folder / str(port)
        for name in ("run", "data"):
            (own / name).mkdir(parents=True, exist_ok=True)
        kind, *options = (
            ("node", "--aclfile", str(self.folder / "users.acl"))
            if port in self.nodes
            else ("sentinel", *ROOT)
        )
        variables = {"RSS_NODE": f"localhost:{port}", "RSS_RUN": str(own / "run")}
        with (own / "log").open("ab") as log:
            self.processes[port] = subprocess.Popen(
                [DEPLOY / "redis" / f"start-{kind}.sh", "--dir", own / "data", *options],
                env={**self.environment, **variables},
                stdout=log,
                stderr=log,
            )

    def kill(self, port: int) -> None:
        """SIGKILL, as by the kernel when memory runs out."""
        process = self.processes.pop(port)
        process.kill()
        process.wait()

    def client(self, port: int, user: str = "root", password: str = "root") -> redis.Redis:
        return redis.Redis(
            port=port,
            username=user,
            password=password,
            decode_responses=True,
            socket_timeout=5,
            retry=Retry(NoBackoff(), 0),
        )

    def seen_by(self, sentinel: int) -> dict[str, Any]:
        """What a sentinel says of the group."""
        (seen,) = self.client(sentinel).sentinel_masters().values()
        return dict(seen)

    def primary(self) -> int:
        """The port of the primary that all sentinels agree on; 0 if they do not."""
        found = {int(self.seen_by(sentinel)["port"]) for sentinel in self.sentinels}
        return found.pop() if len(found) == 1 else 0

    def whole(self) -> bool:
        """Whether all sentinels know each other, and all replicas, which follow the primary."""
        primary = self.primary()
        following = self.client(primary).info("replication")["connected_slaves"] if primary else 0
        return following == len(self.nodes) - 1 and all(
            seen["num-other-sentinels"] == SENTINELS - 1
            and seen["num-slaves"] == len(self.nodes) - 1
            for seen in map(self.seen_by, self.sentinels)
        )

    def url(self, user: str) -> str:
        hosts = ",".join(f"localhost:{port}" for port in self.sentinels)
        return f"redis+sentinel://{user}@{hosts}/state/0"


def replicas_known(sentinel: int, password: str) -> int:
    """How many replicas follow the primary, as a sentinel tells its user `client`."""
    client = redis.Redis(port=sentinel, username="client", password=password)
    with closing(client):
        return int(client.sentinel_masters()["state"]["num-slaves"])


@contextmanager
def group(kind: str, folder: Path, nodes: int = 2) -> Iterator[Group]:
    """Starts a group and waits until it is whole."""
    binary, version = find_server(kind)
    (folder / "bin").mkdir()
    (folder / "bin" / "valkey-server").symlink_to(binary)
    secrets = folder / "secrets"
    secrets.mkdir()
    for role in ("replica", "sentinel"):
        (secrets / f"{role}_password").write_text(PASSWORDS[role])
    (secrets / "sentinel_client_password").write_text(CLIENT_PASSWORD)
    rendered(folder, version)
    ports = free_ports(nodes + SENTINELS)
    made = Group(folder, {}, ports[:nodes], ports[nodes:])
    made.environment = {
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "RSS_FIRST": f"localhost:{ports[0]}",
        "RSS_SENTINELS": " ".join(f"localhost:{port}" for port in made.sentinels),
        "RSS_SECRETS": str(secrets),
    }
    try:
        for port in ports:
            made.start(port)
        until(made.whole, "a group that is whole", timeout=40)
        yield made
    finally:
        for port in list(made.processes):
            made.kill(port)
