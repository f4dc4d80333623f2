"""A real cluster that changes while a learner publishes and readers follow."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest

from redis_state_sync import StatePublisher, StateSubscriber, Version, errors, open_store
from redis_state_sync.keys import Keys
from tests.contract.cluster import NERVOUS_MS, Cluster, cluster, slot_of
from tests.contract.conftest import WAIT
from tests.contract.servers import redis_binary, until, valkey_binary
from tests.contract.traffic import Traffic, state

pytestmark = pytest.mark.timeout(180)

PROMISED_S = 2.0
CONNECT_S = 2.0  # the default of connect_timeout_s
NAMESPACE = "n"  # In slot 3432, which the first node has.
KEYS = Keys(NAMESPACE)
SLOT = slot_of(NAMESPACE)
SERVERS = {"valkey": valkey_binary, "redis": redis_binary}


def newest(nodes: Cluster, port: int) -> str:
    """The newest version that a node has."""
    entries = nodes.client(port).xrevrange(KEYS.versions, count=1)
    return str(entries[0][0]) if entries else ""


class Going:
    """Traffic of which nothing may be lost.

    Args:
        nodes: Where it goes.
    """

    def __init__(self, nodes: Cluster) -> None:
        self.url = nodes.url()
        self.traffic = Traffic(self.url, NAMESPACE)

    def on(self, what: str) -> None:
        """Waits until twenty more versions are stored; a newcomer finds the last one, or newer."""
        now = time.monotonic()
        until(lambda: len(self.traffic.stored_since(now)) > 20, f"twenty versions: {what}")
        _, version = self.traffic.stored_since(now)[-1]
        newcomer = open_store(self.url)
        (top,) = newcomer.newest(KEYS, timeout=WAIT)
        newcomer.close()
        assert top.version >= version

    def stop(self) -> Version:
        """Checks what `Traffic.stop` does, and that no version came after a greater one."""
        last = self.traffic.stop()
        versions = [version for _, version in self.traffic.stored]
        assert versions == sorted(set(versions))
        assert {version.generation for version in versions} == {last.generation}
        return last


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("first_key", ["versions", "blobs"])
def test_a_slot_moves_under_load(server: str, first_key: str) -> None:
    """A slot that is moved key by key, there and back, loses no version: C10, C79."""
    with cluster(binary=SERVERS[server]()) as nodes:
        one, two, _ = nodes.nodes
        going = Going(nodes)
        try:
            going.on("before")
            for source, target in ((one, two), (two, one)):
                nodes.begin_moving(SLOT, source, target)
                going.on("while a slot moves")
                if first_key == "versions":
                    nodes.move_key(KEYS.versions, source, target)
                    going.on("while blobs are left")
                while keys := set(nodes.keys_in(SLOT, source)) - {KEYS.versions}:
                    nodes.move_key(keys.pop(), source, target)
                if first_key != "versions":
                    going.on("while the versions are left")
                    assert set(nodes.keys_in(SLOT, source)) == {KEYS.versions}
                    nodes.move_key(KEYS.versions, source, target)
                going.on("before all know")
                assert nodes.keys_in(SLOT, source) == []
                nodes.finish_moving(SLOT, target)
                going.on("when all know")
                assert nodes.keys_in(SLOT, source) == []
        finally:
            last = going.stop()
        assert newest(nodes, one) == str(last)


def test_a_slot_moves_at_once_under_load() -> None:
    """A slot that Valkey moves as a whole, there and back, loses no version: C10, C79."""
    with cluster() as nodes:
        one, two, _ = nodes.nodes
        going = Going(nodes)
        try:
            going.on("before")
            for source, target in ((one, two), (two, one)):
                range_ = ("SLOTSRANGE", SLOT, SLOT)
                nodes.call(source, "CLUSTER", "MIGRATESLOTS", *range_, "NODE", nodes.id_of(target))
                until(lambda node=target: nodes.owner(NAMESPACE, node) == node, "a moved slot")
                going.on("when the slot has moved")
                assert nodes.keys_in(SLOT, source) == []
        finally:
            last = going.stop()
        assert newest(nodes, one) == str(last)


def kill(nodes: Cluster, old: int, replica: int) -> None:
    nodes.nodes[old].kill()


def freeze(nodes: Cluster, old: int, replica: int) -> None:
    os.kill(nodes.nodes[old].pid or 0, signal.SIGSTOP)


def by_hand(nodes: Cluster, old: int, replica: int) -> None:
    nodes.call(replica, "CLUSTER", "FAILOVER")


@pytest.mark.parametrize(
    ("harm", "server", "protocol"),
    [(kill, "valkey", 3), (kill, "redis", 2), (freeze, "valkey", 2), (by_hand, "valkey", 3)],
)
def test_the_primary_is_lost_under_load(
    harm: Callable[[Cluster, int, int], None], server: str, protocol: int
) -> None:
    """Publishing resumes 2 s after a node is replaced, nothing goes back: C10, C72, C76, C79.

    A primary that hangs costs the timeout of the attempt under way as well.
    """
    with cluster(replicas=1, binary=SERVERS[server]()) as nodes:
        old, *others, replica = nodes.nodes
        traffic = Traffic(nodes.url(protocol=protocol), NAMESPACE)
        frozen = harm is freeze
        try:
            until(lambda: len(traffic.stored) > 20, "twenty versions")
            if harm is not by_hand:
                nodes.set("cluster-node-timeout", NERVOUS_MS)
            lost = time.monotonic()
            harm(nodes, old, replica)
            seen = others[0]
            until(lambda: nodes.owner(NAMESPACE, seen) == replica, "a failover", timeout=2 * WAIT)
            failed_over = time.monotonic()
            # Before a node can have noticed, only a late reply of the old primary arrives.
            until(lambda: len(traffic.stored_since(lost + 0.3)) > 20, "twenty more")
            if frozen:
                # It wakes up, takes itself for the primary, and is told otherwise.
                os.kill(nodes.nodes[old].pid or 0, signal.SIGCONT)
            if harm is not kill:
                until(lambda: nodes.client(old).role()[0] == "slave", "the old one as replica")
        finally:
            last = traffic.stop()
        resumed, first_after = traffic.stored_since(lost + 0.3)[0]
        promised = PROMISED_S + (CONNECT_S if frozen else 0.0)
        assert resumed - failed_over < promised + traffic.stall_s
        assert all(any(v >= first_after for v, _ in applied) for applied in traffic.applied)
        assert newest(nodes, replica) == str(last)


def test_a_part_of_the_cluster_is_lost() -> None:
    """While slots have no owner the error says so, and all goes on when they have one: C5, C79."""
    with cluster() as nodes:
        _, _, other = nodes.nodes
        publisher = StatePublisher(open_store(nodes.url()), NAMESPACE, heartbeat_s=3600.0)
        reader = StateSubscriber(open_store(nodes.url()), NAMESPACE, poll_timeout_s=WAIT)
        publisher.publish(state(1)).wait(WAIT)
        reader.refresh(lambda s: None)
        nodes.set("cluster-node-timeout", NERVOUS_MS)
        nodes.nodes[other].kill()
        for port in nodes.alive():
            until(lambda p=port: "cluster_state:fail" in nodes.call(p, "CLUSTER", "INFO"), "fail")
        with pytest.raises(errors.StoreError, match=r"CLUSTERDOWN.*no owner") as caught:
            publisher.publish(state(2)).wait(WAIT, fail_fast=True)
        assert type(caught.value) is errors.StoreUnavailableError
        handle = publisher.publish(state(3))
        nodes.nodes[other].start()
        version = handle.wait(WAIT)
        until(lambda: [reader.refresh(lambda s: None), reader.held == version][1], "the version")
        publisher.close()
        reader.close()
