"""A Redis Cluster on loopback: three primaries with a third of the slots each, and replicas."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot
from redis.retry import Retry

from redis_state_sync.embedded import EmbeddedServer
from redis_state_sync.keys import Keys
from tests.contract.servers import (
    WAIT,
    Authority,
    Certificate,
    free_ports,
    options,
    redis_binary,
    start,
    tls_lines,
    until,
    valkey_binary,
)

PRIMARIES = 3
# Nodes of a machine that stands still for so long would declare each other dead.
CALM_MS = 20_000
# A dead node is noticed after this time, and replaced after two or three times as long. (To be set
# when the harm is done: the machine may stand still for that long before.)
NERVOUS_MS = 700


def slot_of(namespace: str) -> int:
    """The hash slot in which a namespace lives."""
    return key_slot(Keys(namespace).versions.encode())


class Cluster:
    """Nodes by their port: first the primaries, in the order of their slots.

    Args:
        nodes: Port -> server.
        password: Of all nodes, or None.
        tls: Options of a URL that speaks TLS; None without TLS.
    """

    def __init__(
        self,
        nodes: dict[int, EmbeddedServer],
        password: str | None = None,
        tls: dict[str, object] | None = None,
    ) -> None:
        self.nodes = nodes
        self._password = password
        self._tls = tls
        self._clients: dict[int, redis.Redis] = {}

    def url(self, *ports: int, host: str = "127.0.0.1", **more: object) -> str:
        """The store URL, with these start nodes or with all."""
        hosts = ",".join(f"{host}:{port}" for port in ports or self.nodes)
        given = {**(self._tls or {}), **more}
        scheme = "redis+cluster" if self._tls is None else "rediss+cluster"
        return f"{scheme}://{hosts}{options(**given) if given else ''}"

    def client(self, port: int) -> redis.Redis:
        """A client of one node, by its Unix socket, to look at it and to do harm to it."""
        if port not in self._clients:
            self._clients[port] = redis.Redis(
                unix_socket_path=str(self.nodes[port].socket_path),
                password=self._password,
                retry=Retry(NoBackoff(), 0),
                socket_timeout=WAIT,
                protocol=2,
                decode_responses=True,
                encoding_errors="replace",
            )
        return self._clients[port]

    def call(self, port: int, *words: object) -> Any:
        """The reply of one node to one command."""
        return self.client(port).execute_command(*words)

    def id_of(self, port: int) -> str:
        """By which the nodes know each other."""
        return str(self.call(port, "CLUSTER", "MYID"))

    def alive(self) -> list[int]:
        """The nodes that run."""
        return [port for port, node in self.nodes.items() if node.pid]

    def owner(self, namespace: str, asked: int | None = None) -> int:
        """The node that has a namespace, as one of them sees it."""
        slot = slot_of(namespace)
        ranges = self.primaries(asked or self.alive()[0])
        (port,) = (port for first, last, port in ranges if first <= slot <= last)
        return port

    def primaries(self, asked: int) -> list[tuple[int, int, int]]:
        """First slot, last slot, port: as one node sees it."""
        ranges = self.call(asked, "CLUSTER", "SLOTS")
        return sorted((int(a), int(b), int(primary[1])) for a, b, primary, *_ in ranges)

    def set(self, name: str, value: object) -> None:
        """Changes the configuration of all nodes that run."""
        for port in self.alive():
            self.client(port).config_set(name, value)

    def is_whole(self) -> bool:
        """Whether every node that runs serves, and all know each other and who has what."""
        views = []
        for port in self.alive():
            info = str(self.call(port, "CLUSTER", "INFO")).split()
            if not {"cluster_state:ok", f"cluster_known_nodes:{len(self.nodes)}"} <= set(info):
                return False
            views.append(self.primaries(port))
        return all(view == views[0] for view in views)

    def begin_moving(self, slot: int, source: int, target: int) -> None:
        """From now on `source` sends away those who ask for keys that it does not have."""
        self.call(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", self.id_of(source))
        self.call(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", self.id_of(target))

    def keys_in(self, slot: int, port: int) -> list[str]:
        """The keys of a slot that a node holds."""
        return list(self.call(port, "CLUSTER", "GETKEYSINSLOT", slot, 1000))

    def move_key(self, key: str, source: int, target: int) -> None:
        """Moves one key. It must not be at the target already."""
        words = ["MIGRATE", "127.0.0.1", target, key, 0, int(WAIT * 1000)]
        self.call(source, *words, *(["AUTH", self._password] if self._password else []))

    def finish_moving(self, slot: int, target: int) -> None:
        """Everybody learns who has the slot, the new owner first."""
        for port in [target, *(p for p in self.alive() if p != target)]:
            self.call(port, "CLUSTER", "SETSLOT", slot, "NODE", self.id_of(target))

    def close(self) -> None:
        """Closes the clients."""
        for client in self._clients.values():
            client.close()


@contextmanager
def cluster(
    *config: str,
    replicas: int = 0,
    binary: Path | None = None,
    password: str | None = None,
    tls: tuple[Authority, Certificate] | None = None,
) -> Iterator[Cluster]:
    """Starts the nodes, and ends them by their own pids.

    Args:
        *config: Further lines of their configuration, which count more than ours.
        replicas: How many of them the first primary has.
        binary: The server; Valkey unless given, and Debian's Redis with TLS.
        password: Asked of clients, and of the nodes among each other.
        tls: Who signs, and what the nodes show.
    """
    count = PRIMARIES + replicas
    ports = free_ports(2 * count)
    lines = ["cluster-enabled yes", f"cluster-node-timeout {CALM_MS}"]
    # They would wait for five seconds before they first copy to a replica.
    lines += ["repl-diskless-sync-delay 0", "cluster-config-file nodes.conf"]
    lines += [f"masterauth {password}"] if password else []
    if tls:
        lines += [*tls_lines(*tls), "bind 127.0.0.1", "tls-cluster yes", "tls-replication yes"]
    with ExitStack() as stack:
        nodes = {}
        for port, bus in zip(ports[:count], ports[count:], strict=True):
            own = [*lines, f"cluster-port {bus}", *([f"tls-port {port}"] if tls else []), *config]
            nodes[port] = stack.enter_context(
                start(
                    binary or (redis_binary() if tls else valkey_binary()),
                    *own,
                    port=0 if tls else port,
                    password=password,
                )
            )
        made = Cluster(nodes, password, {"ssl_ca_certs": tls[0].file} if tls else None)
        stack.callback(made.close)
        for number, port in enumerate(nodes):
            made.call(port, "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            if number < PRIMARIES:
                third = REDIS_CLUSTER_HASH_SLOTS // PRIMARIES
                last = number == PRIMARIES - 1
                end = REDIS_CLUSTER_HASH_SLOTS if last else (number + 1) * third
                made.call(port, "CLUSTER", "ADDSLOTSRANGE", number * third, end - 1)
        addresses = list(zip(ports[:count], ports[count:], strict=True))
        for number, port in enumerate(nodes):
            for other, bus in addresses[number + 1 :]:  # To hear of it from others takes a second.
                made.call(port, "CLUSTER", "MEET", "127.0.0.1", other, bus)
        until(made.is_whole, "a cluster")
        for port in ports[PRIMARIES:count]:
            made.call(port, "CLUSTER", "REPLICATE", made.id_of(ports[0]))
            until(
                lambda p=port: made.client(p).info("replication")["master_link_status"] == "up",
                "a replica that follows",
            )
        until(made.is_whole, "a cluster")
        yield made
