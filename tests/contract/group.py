"""A primary, its replica and three sentinels: Debian's Redis, all with passwords."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from redis_state_sync.embedded import EmbeddedServer
from tests.contract.servers import (
    WAIT,
    Authority,
    free_port,
    options,
    redis_binary,
    sentinel_binary,
    start,
    tls_lines,
    until,
)

DATA_PASSWORD = "data-nodes-password"
SENTINEL_PASSWORD = "sentinels-password"
SERVICE = "mymaster"
DOWN_AFTER_MS = 500


class Group:
    """Servers by their port, in order: two data nodes, of which the first begins as primary.

    Args:
        nodes: Port -> data node.
        sentinels: Port -> sentinel.
        client_options: What a client takes besides port and password.
        url_options: The same for store URLs.
    """

    def __init__(
        self,
        nodes: dict[int, EmbeddedServer],
        sentinels: dict[int, EmbeddedServer],
        client_options: dict[str, Any],
        url_options: dict[str, object],
    ) -> None:
        self.nodes = nodes
        self.sentinels = sentinels
        self._client_options = client_options
        self._url_options = url_options
        self._clients: dict[int, redis.Redis] = {}

    def url(self, **more: object) -> str:
        """The store URL by way of the sentinels."""
        scheme = "rediss+sentinel" if self._url_options else "redis+sentinel"
        hosts = ",".join(f"127.0.0.1:{port}" for port in self.sentinels)
        return f"{scheme}://{hosts}/{SERVICE}/0{options(**self._url_options, **more)}"

    def client(self, port: int) -> redis.Redis:
        """A client of one server, to look at it and to do harm to it."""
        if port not in self._clients:
            self._clients[port] = redis.Redis(
                host="127.0.0.1",
                port=port,
                password=SENTINEL_PASSWORD if port in self.sentinels else DATA_PASSWORD,
                retry=Retry(NoBackoff(), 0),
                socket_timeout=WAIT,
                protocol=2,
                decode_responses=True,
                encoding_errors="replace",
                **self._client_options,
            )
        return self._clients[port]

    def primary(self) -> int:
        """The port of the primary by the newest word of any sentinel."""
        views = []
        for port in self.sentinels:
            state: Any = self.client(port).execute_command("SENTINEL MASTERS")[SERVICE]
            views.append((state["config-epoch"], state["port"]))
        return int(max(views)[1])

    def replica(self) -> int:
        """The port of the other data node."""
        (port,) = set(self.nodes) - {self.primary()}
        return port

    def whole(self) -> bool:
        """Whether all know each other and the replica follows, so that a failover can succeed."""
        for port in self.sentinels:
            client = self.client(port)
            state: Any = client.execute_command("SENTINEL MASTERS")[SERVICE]
            if state["num-slaves"] != 1 or state["num-other-sentinels"] != 2:
                return False
            (replica,) = client.sentinel_slaves(SERVICE)
            if replica["flags"] != {"slave"} and replica["flags"] != "slave":
                return False
            if replica["master-link-status"] != "ok":
                return False
        return True

    def tune(self, **milliseconds: int) -> None:
        """Sets periods of the sentinels, by the names that SENTINEL DEBUG has for them."""
        pairs = [w for name, ms in milliseconds.items() for w in (name.replace("_", "-"), ms)]
        for port in self.sentinels:
            self.client(port).execute_command("SENTINEL", "DEBUG", *pairs)

    def failed_over(self, old: int) -> None:
        """Waits until a sentinel names another primary than this one."""
        # Sentinels that voted for each other try again after twice their failover-timeout.
        until(lambda: self.primary() != old, "a failover", timeout=2 * WAIT)

    def close(self) -> None:
        """Closes the clients."""
        for client in self._clients.values():
            client.close()


@contextmanager
def group(folder: Path, *, tls: bool = False) -> Iterator[Group]:
    """Starts all five, and ends them by their own pids."""
    lines: tuple[str, ...] = ()
    client_options: dict[str, Any] = {}
    url_options: dict[str, object] = {}
    if tls:
        authority = Authority(folder)
        lines = (*tls_lines(authority, authority.issue("127.0.0.1")), "tls-replication yes")
        client_options = {"ssl": True, "ssl_ca_certs": str(authority.file)}
        url_options = {"ssl_ca_certs": authority.file}

    with ExitStack() as stack:

        def run(binary: Path, password: str, *own: str) -> tuple[int, EmbeddedServer]:
            port = free_port()
            listen = ("bind 127.0.0.1", f"tls-port {port}") if tls else ()
            server = start(
                binary, *lines, *listen, *own, port=0 if tls else port, password=password
            )
            return port, stack.enter_context(server)

        # Redis waits five seconds for more replicas by default.
        node = (f"masterauth {DATA_PASSWORD}", "repl-diskless-sync-delay 0")
        first, primary = run(redis_binary(), DATA_PASSWORD, *node)
        follow = f"replicaof 127.0.0.1 {first}"
        second, replica = run(redis_binary(), DATA_PASSWORD, *node, follow)
        watch = (
            f"sentinel monitor {SERVICE} 127.0.0.1 {first} 2",
            f"sentinel auth-pass {SERVICE} {DATA_PASSWORD}",
            f"sentinel down-after-milliseconds {SERVICE} {DOWN_AFTER_MS}",
            f"sentinel failover-timeout {SERVICE} 3000",
        )
        binary = sentinel_binary(folder)
        sentinels = dict(run(binary, SENTINEL_PASSWORD, *watch) for _ in range(3))
        made = Group({first: primary, second: replica}, sentinels, client_options, url_options)
        stack.callback(made.close)
        # What sentinels do once in one to ten seconds would make tests slow; and on a machine that
        # stood still for two seconds they would do nothing for thirty.
        made.tune(info_period=100, ask_period=100, tilt_period=200, publish_period=100)
        until(made.whole, "sentinels that know the replica")
        # Four periods are what they grant each other between a promotion and its announcement.
        made.tune(publish_period=2000)
        yield made
