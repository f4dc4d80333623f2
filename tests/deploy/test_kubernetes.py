"""The manifests: built by kustomize, checked by the strict schemas, and by what we want of them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.deploy.kubernetes import (
    FOLDER,
    OVERLAYS,
    Object,
    containers,
    labels_of,
    named,
    objects,
    of_kind,
    pod_of,
    selects,
    volume_keys,
    workloads,
)
from tests.deploy.profiles import EXPECTED
from tests.deploy.server import DEPLOY

CLIENT = {"redis-state-sync/client": "true"}
# Of others' operators, whose schemas are not at hand: looked at below, field by field.
CUSTOM = {"Certificate", "PodMonitor", "PrometheusRule"}
VERSIONS = ("1.28", "1.34")
UNITS = {"Mi": 1 << 20, "Gi": 1 << 30}

every_overlay = pytest.mark.parametrize("overlay", OVERLAYS)


def size(text: str) -> int:
    return int(text[:-2]) * UNITS[text[-2:]]


def ports_of(workload: Object) -> dict[str, int]:
    return {
        port["name"]: port["containerPort"]
        for container in containers(workload)
        for port in container.get("ports", [])
    }


@every_overlay
@pytest.mark.parametrize("version", VERSIONS)
def test_objects_follow_the_schema(overlay: str, version: str) -> None:
    """Every object is valid for an old and a new Kubernetes, and has no field that is unknown."""
    found = [o for o in objects(overlay) if o["kind"] not in CUSTOM]
    assert found
    for each in found:
        kubernetes_validate.validate(each, version, strict=True)


def test_the_schema_is_strict() -> None:
    """A misspelt field of a container is found."""
    found = named("base", "StatefulSet", "valkey")
    pod_of(found)["containers"][0]["readynessProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="readynessProbe"):
        kubernetes_validate.validate(found, VERSIONS[-1], strict=True)


def test_every_file_is_part_of_an_overlay() -> None:
    """Every manifest and patch is named by the kustomization beside it."""
    for path in FOLDER.glob("*/*.yaml"):
        kustomization = yaml.safe_load((path.parent / "kustomization.yaml").read_text())
        used = [*kustomization["resources"], *kustomization.get("patches", [])]
        names = [
            one["path"] if isinstance(one, dict) else one for one in used if "patch" not in one
        ]
        assert path.name == "kustomization.yaml" or path.name in names, path


def test_files_are_those_that_compose_and_the_tests_use() -> None:
    """The ConfigMap holds every file of deploy/redis as it is, and its name says if one changed."""
    (found,) = of_kind("base", "ConfigMap")
    folder = DEPLOY / "redis"
    assert found["data"] == {
        path.name: path.read_text()
        for path in folder.iterdir()
        if path.name != "kustomization.yaml"
    }
    # The name has a hash of the content: a change restarts the pods.
    assert re.fullmatch(r"redis-state-sync-files-\w{10}", found["metadata"]["name"])


@every_overlay
def test_everything_is_in_one_namespace(overlay: str) -> None:
    """Every object has the namespace, its label, and a name that no other of its kind has."""
    found = objects(overlay)
    names = [(o["kind"], o["metadata"]["name"]) for o in found]
    assert len(set(names)) == len(names)
    for each in found:
        metadata = each["metadata"]
        assert metadata["labels"]["app.kubernetes.io/part-of"] == "redis-state-sync"
        if each["kind"] != "Namespace":
            assert metadata["namespace"] == "redis-state-sync"


@every_overlay
def test_pods_are_restricted(overlay: str) -> None:
    """Not root, nothing to write to but volumes, no capability, no token of the cluster."""
    for workload in workloads(overlay):
        pod = pod_of(workload)
        assert pod["automountServiceAccountToken"] is False
        assert pod["enableServiceLinks"] is False
        assert not any(pod.get(name) for name in ("hostNetwork", "hostPID", "hostIPC"))
        context = pod["securityContext"]
        assert context["runAsNonRoot"] is True
        assert context["runAsUser"] > 0
        assert context["runAsGroup"] > 0
        # Secrets are readable by this group alone.
        assert context["fsGroup"] == context["runAsGroup"]
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in containers(workload):
            own = container["securityContext"]
            assert own["allowPrivilegeEscalation"] is False
            assert own["readOnlyRootFilesystem"] is True
            assert own["capabilities"] == {"drop": ["ALL"]}
            assert not own.get("privileged")
        for volume in pod["volumes"]:
            assert "hostPath" not in volume
            if "secret" in volume:
                assert volume["secret"]["defaultMode"] == 0o440


@every_overlay
def test_images_are_pinned(overlay: str) -> None:
    """Every image has a version, and it is that of the compose files."""
    pinned = {
        service["image"]
        for path in (DEPLOY / "compose").glob("compose*.yaml")
        for service in yaml.safe_load(path.read_text())["services"].values()
        if "image" in service
    }
    for workload in workloads(overlay):
        for container in containers(workload):
            assert re.search(r":v?\d+\.\d+[\w.-]*$", container["image"])
            assert container["image"] in pinned


@every_overlay
def test_selectors_select_what_they_are_for(overlay: str) -> None:
    """Workloads own their pods and no others; Services, budgets and policies find theirs."""
    found = list(workloads(overlay))
    for workload in found:
        owned = [w for w in found if selects(workload["spec"]["selector"], labels_of(w))]
        assert owned == [workload]
    for service in of_kind(overlay, "Service"):
        chosen = [
            w for w in found if selects({"matchLabels": service["spec"]["selector"]}, labels_of(w))
        ]
        assert len(chosen) == 1, service["metadata"]["name"]
        for port in service["spec"]["ports"]:
            assert ports_of(chosen[0])[port["targetPort"]] == port["port"]
    for kind in ("PodDisruptionBudget", "PodMonitor"):
        for each in of_kind(overlay, kind):
            chosen = [w for w in found if selects(each["spec"]["selector"], labels_of(w))]
            assert len(chosen) == 1, each["metadata"]["name"]
            for endpoint in each["spec"].get("podMetricsEndpoints", []):
                assert endpoint["port"] in ports_of(chosen[0])
    guarded = [
        labels_of(w)
        for policy in of_kind(overlay, "NetworkPolicy")
        for w in found
        if selects(policy["spec"]["podSelector"], labels_of(w))
    ]
    # Each workload has exactly one policy.
    assert sorted(map(str, guarded)) == sorted(str(labels_of(w)) for w in found)


@every_overlay
def test_stateful_sets_have_their_headless_service(overlay: str) -> None:
    """The names of pods come from a Service that has no address and names pods not ready, too."""
    for workload in of_kind(overlay, "StatefulSet"):
        service = named(overlay, "Service", workload["spec"]["serviceName"])
        assert service["spec"]["clusterIP"] == "None"
        assert service["spec"]["publishNotReadyAddresses"] is True
        assert selects({"matchLabels": service["spec"]["selector"]}, labels_of(workload))


@every_overlay
def test_every_file_that_is_referred_to_is_mounted(overlay: str) -> None:
    """Volumes refer to ConfigMaps and Secrets that there are; commands and variables to files."""
    for workload in workloads(overlay):
        pod = pod_of(workload)
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        claims = {
            claim["metadata"]["name"] for claim in workload["spec"].get("volumeClaimTemplates", [])
        }
        used = set()
        for container in containers(workload):
            files, folders = set(), set()
            for mount in container["volumeMounts"]:
                used.add(mount["name"])
                if mount["name"] in claims:
                    folders.add(mount["mountPath"])
                    continue
                volume = volumes[mount["name"]]
                keys = volume_keys(overlay, volume)
                files |= {f"{mount['mountPath']}/{key}" for key in keys}
                if "emptyDir" in volume:
                    folders.add(mount["mountPath"])
                else:
                    assert mount["readOnly"] is True
                    # Only where a whole folder is meant.
                    files.add(mount["mountPath"])
            for word in words_of(container):
                for path in re.findall(r"(?:^|=)(/[\w./-]+)$", word):
                    inside = any(path == f or path.startswith(f"{f}/") for f in folders)
                    assert path in files or inside, (container["name"], path)
        assert used == volumes.keys() | claims


def words_of(container: Object) -> list[str]:
    probes = [container.get(f"{name}Probe", {}) for name in ("startup", "readiness", "liveness")]
    return [
        *(container.get("command", [])),
        *(container.get("args", [])),
        *(variable.get("value", "") for variable in container.get("env", [])),
        *(word for probe in probes for word in probe.get("exec", {}).get("command", [])),
    ]


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


def test_exporters_are_clients() -> None:
    """The exporters have the label that the servers' policy asks for, and the server's name."""
    service = named("base", "Service", "valkey")
    for workload in workloads("monitoring"):
        assert CLIENT.items() <= labels_of(workload).items()
        text = " ".join(words_of(containers(workload)[0]))
        port = service["spec"]["ports"][0]["port"]
        assert f"redis://monitor@{service['metadata']['name']}:{port}" in text
        annotations = workload["spec"]["template"]["metadata"]["annotations"]
        assert annotations["prometheus.io/scrape"] == "true"
        assert int(annotations["prometheus.io/port"]) in ports_of(workload).values()


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


def test_dashboard_and_alerts_are_those_of_deploy_monitoring() -> None:
    """The ConfigMaps hold the files as they are; Grafana's sidecar finds the one by its label."""
    folder = DEPLOY / "monitoring"
    dashboard = named("monitoring", "ConfigMap", "redis-state-sync-dashboard")
    (text,) = dashboard["data"].values()
    assert json.loads(text) == json.loads((folder / "grafana/redis-state-sync.json").read_text())
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    alerts = named("monitoring", "ConfigMap", "redis-state-sync-alerts")
    assert alerts["data"] == {"alerts.yaml": (folder / "prometheus/alerts.yaml").read_text()}


def spaced(value: Any) -> str:
    return re.sub(r"(\s|\\n)+", " ", json.dumps(value, sort_keys=True))


def test_the_script_makes_the_rule(tmp_path: Path) -> None:
    """Run on a copy of deploy/, make_prometheusrule.py writes the manifest that is there."""
    copy = Path(shutil.copytree(DEPLOY, tmp_path / "d", ignore=shutil.ignore_patterns("secrets")))
    folder = copy / "kubernetes" / "monitoring-operator"
    (folder / "prometheusrule.yaml").unlink()
    subprocess.run([sys.executable, folder / "make_prometheusrule.py"], check=True)
    made = (folder / "prometheusrule.yaml").read_text()
    assert made == (FOLDER / "monitoring-operator" / "prometheusrule.yaml").read_text()


def test_operator_gets_the_same_rules_and_jobs() -> None:
    """The PrometheusRule was made from the alert rules of today, and jobs have the same names."""
    rules = yaml.safe_load((DEPLOY / "monitoring/prometheus/alerts.yaml").read_text())
    path = FOLDER / "monitoring-operator" / "prometheusrule.yaml"
    assert yaml.safe_load(path.read_text())["spec"] == rules, "run make_prometheusrule.py"
    found = named("monitoring-operator", "PrometheusRule", "redis-state-sync")
    # kustomize breaks long lines its own way.
    assert spaced(found["spec"]) == spaced(rules)
    conf = yaml.safe_load((DEPLOY / "monitoring/prometheus/prometheus.yml").read_text())
    jobs = {job["job_name"] for job in conf["scrape_configs"]} - {"ray"}
    monitors = of_kind("monitoring-operator", "PodMonitor")
    assert {
        rule["replacement"]
        for monitor in monitors
        for endpoint in monitor["spec"]["podMetricsEndpoints"]
        for rule in endpoint["relabelings"]
        if rule["targetLabel"] == "job"
    } == jobs
    for each in [*monitors, found]:
        assert each["metadata"]["labels"]["release"] == "monitoring"


def test_no_secret_is_among_the_objects() -> None:
    """Secrets are made by who deploys, from files that no repository holds."""
    for overlay in OVERLAYS:
        assert of_kind(overlay, "Secret") == []
