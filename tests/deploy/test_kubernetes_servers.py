"""The servers' manifests: probes, memory, who reaches whom, and that nodes and sentinels agree."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tests.deploy.kubernetes import (
    CLIENT,
    Object,
    containers,
    every_overlay,
    labels_of,
    named,
    of_kind,
    pod_of,
    ports_of,
    selects,
    workloads,
)
from tests.deploy.profiles import EXPECTED
from tests.deploy.server import DEPLOY

UNITS = {"Mi": 1 << 20, "Gi": 1 << 30}


def size(text: str) -> int:
    return int(text[:-2]) * UNITS[text[-2:]]


@every_overlay
def test_probes(overlay: str) -> None:
    """Servers start in their time, get clients when they answer, and are restarted when silent."""
    for workload in workloads(overlay):
        for container in pod_of(workload)["containers"]:
            startup, ready, alive = (
                container[f"{name}Probe"] for name in ("startup", "readiness", "liveness")
            )
            assert startup["periodSeconds"] * startup.get("failureThreshold", 3) >= 60
            assert alive["periodSeconds"] * alive["failureThreshold"] >= 60
            if "exec" in alive:
                # The one that kills is told only whether there is any answer.
                assert "--alive" in alive["exec"]["command"]
                assert startup["exec"] == ready["exec"]
                without = [word for word in alive["exec"]["command"] if word != "--alive"]
                assert without == ready["exec"]["command"]
            else:
                port = alive["httpGet"]["port"]
                assert port in ports_of(workload)


@pytest.mark.parametrize("overlay", ["base", "ha", "tls"])
def test_resources(overlay: str) -> None:
    """Memory is what the profile takes at most, and guaranteed; CPU is never throttled."""
    maxmemory = int(EXPECTED["valkey.conf"]["maxmemory"])
    backlog = int(EXPECTED["replica.conf"]["repl-backlog-size"]) if overlay == "ha" else 0
    for workload in workloads(overlay):
        for container in containers(workload):
            resources = container["resources"]
            assert "cpu" not in resources["limits"]
            assert resources["requests"]["cpu"]
            if container["name"] == "valkey":
                assert resources["requests"]["memory"] == resources["limits"]["memory"]
                assert size(resources["limits"]["memory"]) >= 2 * maxmemory + 2 * backlog
    (claim,) = named(overlay, "StatefulSet", "valkey")["spec"]["volumeClaimTemplates"]
    rewrite = int(EXPECTED["valkey.conf"]["auto-aof-rewrite-min-size"])
    assert size(claim["spec"]["resources"]["requests"]["storage"]) >= 3 * maxmemory + rewrite


def peers(policy: Object, direction: str) -> list[Any]:
    key = "from" if direction == "ingress" else "to"
    return [peer for rule in policy["spec"][direction] for peer in rule[key]]


@pytest.mark.parametrize("overlay", ["base", "ha", "tls"])
def test_only_clients_reach_the_servers(overlay: str) -> None:
    """Labelled pods get in, from here and from labelled namespaces, and each other; nobody else."""
    for policy in of_kind(overlay, "NetworkPolicy"):
        assert sorted(policy["spec"]["policyTypes"]) == ["Egress", "Ingress"]
        expected = [
            {"podSelector": {"matchLabels": CLIENT}},
            {
                "namespaceSelector": {"matchLabels": {"redis-state-sync/clients": "true"}},
                "podSelector": {"matchLabels": CLIENT},
            },
        ]
        if overlay == "ha":
            members = {"podSelector": {"matchLabels": {"app.kubernetes.io/name": "valkey"}}}
            expected.append(members)
            group, names = policy["spec"]["egress"]
            assert group["to"] == [members]
            assert {port["port"] for port in group["ports"]} == {6379, 26379}
            assert {port["port"] for port in names["ports"]} == {53}
        else:
            assert policy["spec"]["egress"] == []
        assert peers(policy, "ingress") == expected
        for workload in workloads(overlay):
            if selects(policy["spec"]["podSelector"], labels_of(workload)):
                (rule,) = policy["spec"]["ingress"]
                assert {port["port"] for port in rule["ports"]} == set(ports_of(workload))


def test_compose_and_kubernetes_start_the_same() -> None:
    """The servers' commands differ from those of Compose only in addresses and places."""
    pairs = [
        ("base", "valkey", "compose.yaml", "valkey"),
        ("tls", "valkey", "compose.tls.yaml", "valkey"),
        ("ha", "valkey", "compose.sentinel.yaml", "node1"),
        ("ha", "sentinel", "compose.sentinel.yaml", "sentinel1"),
    ]
    for overlay, name, file, service in pairs:
        (container,) = pod_of(named(overlay, "StatefulSet", name))["containers"]
        compose = yaml.safe_load((DEPLOY / "compose" / file).read_text())["services"][service]
        ours = " ".join(container["command"]).replace("* -::*", "0.0.0.0")
        ours = ours.replace("/run/redis-state-sync/users.acl", "/run/secrets/users.acl")
        assert ours.split() == compose["command"]


def test_ha_is_a_majority_on_different_hosts() -> None:
    """Three nodes and three sentinels, spread over hosts, of which one at a time may be moved."""
    for name in ("valkey", "sentinel"):
        found = named("ha", "StatefulSet", name)
        assert found["spec"]["replicas"] == 3
        (spread,) = pod_of(found)["topologySpreadConstraints"]
        assert spread["topologyKey"] == "kubernetes.io/hostname"
        assert selects(spread["labelSelector"], labels_of(found))
        assert named("ha", "PodDisruptionBudget", name)["spec"]["maxUnavailable"] == 1
        # Each is told where all sentinels are.
        (container,) = pod_of(found)["containers"]
        variables = {variable["name"]: variable.get("value", "") for variable in container["env"]}
        assert variables["RSS_SENTINELS"].split() == [
            f"sentinel-{number}.sentinel.$(POD_NAMESPACE).svc:26379" for number in range(3)
        ]
        # Kubernetes puts in only what stands further up.
        order = [variable["name"] for variable in container["env"]]
        assert order.index("POD_NAME") < order.index("RSS_NODE")
        service = found["spec"]["serviceName"]
        assert variables["RSS_NODE"].startswith(f"$(POD_NAME).{service}.$(POD_NAMESPACE).svc:")
    # A Service for all nodes would lead learners to replicas.
    assert {o["metadata"]["name"] for o in of_kind("ha", "Service")} == {"valkey-nodes", "sentinel"}


def test_certificate_is_for_the_names_of_the_service() -> None:
    """The Secret that cert-manager makes is the one that is mounted, for all names in use."""
    found = named("tls", "Certificate", "redis-state-sync")["spec"]
    volumes = pod_of(named("tls", "StatefulSet", "valkey"))["volumes"]
    assert found["secretName"] in [v["secret"]["secretName"] for v in volumes if "secret" in v]
    full = "valkey.redis-state-sync.svc.cluster.local"
    parts = full.split(".")
    assert {".".join(parts[:n]) for n in (1, 2, 3, 5)} | {"localhost"} == set(found["dnsNames"])
    assert "server auth" in found["usages"]
    assert found["issuerRef"]["name"]
