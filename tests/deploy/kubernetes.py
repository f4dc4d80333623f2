"""What kustomize makes of `deploy/kubernetes`, and how its objects refer to each other."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.deploy.server import DEPLOY, missing

FOLDER = DEPLOY / "kubernetes"
OVERLAYS = sorted(path.parent.name for path in FOLDER.glob("*/kustomization.yaml"))
Object = dict[str, Any]
every_overlay = pytest.mark.parametrize("overlay", OVERLAYS)
# What the servers' policies ask of a pod.
CLIENT = {"redis-state-sync/client": "true"}
# What the user makes: key -> which of our scripts makes it, or who else.
SECRETS = {
    "redis-state-sync": {
        *("learner_password", "runner_password", "operator_password", "monitor_password"),
        *("replica_password", "sentinel_password", "sentinel_client_password"),
        "redis_exporter.json",
    },
    "redis-state-sync-tls": {"tls.crt", "tls.key", "ca.crt"},
}


def command() -> list[str]:
    """A kustomize of our days: 4 or later, alone or within kubectl."""
    if found := shutil.which("kustomize"):
        return [found, "build"]
    if found := shutil.which("kubectl"):
        done = subprocess.run(
            [found, "version", "--client"], capture_output=True, text=True, check=False
        )
        if match := re.search(r"Kustomize Version: v(\d+)", done.stdout):
            assert int(match.group(1)) >= 4
            return [found, "kustomize"]
    missing("kustomize, or a kubectl of version 1.21 or later")
    raise AssertionError


@functools.cache
def _built(overlay: str) -> str:
    done = subprocess.run(
        [*command(), str(FOLDER / overlay)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr
    return done.stdout


def objects(overlay: str) -> list[Object]:
    """All objects of an overlay."""
    return [dict(found) for found in yaml.safe_load_all(_built(overlay))]


def named(overlay: str, kind: str, name: str) -> Object:
    """The one object of this kind and name."""
    (found,) = [o for o in objects(overlay) if o["kind"] == kind and o["metadata"]["name"] == name]
    return found


def of_kind(overlay: str, kind: str) -> list[Object]:
    return [found for found in objects(overlay) if found["kind"] == kind]


def workloads(overlay: str) -> Iterator[Object]:
    """What makes pods."""
    for found in objects(overlay):
        if found["kind"] in ("StatefulSet", "Deployment"):
            yield found


def pod_of(workload: Object) -> Object:
    return dict(workload["spec"]["template"]["spec"])


def labels_of(workload: Object) -> dict[str, str]:
    return dict(workload["spec"]["template"]["metadata"]["labels"])


def containers(workload: Object) -> list[Object]:
    pod = pod_of(workload)
    return [*pod.get("initContainers", []), *pod["containers"]]


def selects(selector: Object, labels: dict[str, str]) -> bool:
    """Whether a label selector, with matchLabels and matchExpressions, selects these labels."""
    if any(labels.get(key) != value for key, value in selector.get("matchLabels", {}).items()):
        return False
    for rule in selector.get("matchExpressions", []):
        assert rule["operator"] == "In"
        if labels.get(rule["key"]) not in rule["values"]:
            return False
    return True


def volume_keys(overlay: str, volume: Object) -> set[str]:
    """The files that a volume brings; refers to what there is, or fails."""
    if "configMap" in volume:
        found = named(overlay, "ConfigMap", volume["configMap"]["name"])
        keys, items = set(found["data"]), volume["configMap"].get("items")
    elif "secret" in volume:
        keys = SECRETS[volume["secret"]["secretName"]]
        items = volume["secret"].get("items")
    else:
        return set()
    if items is None:
        return keys
    assert {item["key"] for item in items} <= keys, (volume["name"], items)
    return {item["path"] for item in items}


def ports_of(workload: Object) -> dict[str, int]:
    """The named ports of its containers."""
    return {
        port["name"]: port["containerPort"]
        for container in containers(workload)
        for port in container.get("ports", [])
    }


def words_of(container: Object) -> list[str]:
    """All words of its command, arguments, variables and probes."""
    probes = [container.get(f"{name}Probe", {}) for name in ("startup", "readiness", "liveness")]
    return [
        *(container.get("command", [])),
        *(container.get("args", [])),
        *(variable.get("value", "") for variable in container.get("env", [])),
        *(word for probe in probes for word in probe.get("exec", {}).get("command", [])),
    ]
