"""The manifests: built by kustomize, checked by the strict schemas, and by what we want of all."""

from __future__ import annotations

import re

import kubernetes_validate
import pytest
import yaml

from tests.deploy.kubernetes import (
    FOLDER,
    OVERLAYS,
    containers,
    every_overlay,
    labels_of,
    named,
    objects,
    of_kind,
    pod_of,
    ports_of,
    selects,
    volume_keys,
    words_of,
    workloads,
)
from tests.deploy.server import DEPLOY

# Of others' operators, whose schemas are not at hand: looked at field by field in other files.
CUSTOM = {"Certificate", "PodMonitor", "PrometheusRule"}
VERSIONS = ("1.28", "1.34")


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


def test_no_secret_is_among_the_objects() -> None:
    """Secrets are made by who deploys, from files that no repository holds."""
    for overlay in OVERLAYS:
        assert of_kind(overlay, "Secret") == []
