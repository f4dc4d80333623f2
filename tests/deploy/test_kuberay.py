"""Ray's custom resources: checked strictly by KubeRay's own schemas, and by what jobs need."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from redis_state_sync.credentials import URL_ENV
from redis_state_sync.settings import Settings
from tests.contract.servers import free_port
from tests.deploy.conftest import Boot
from tests.deploy.kubernetes import command, named
from tests.deploy.server import DEPLOY, PASSWORDS
from tests.deploy.test_repository import project

FOLDER = DEPLOY / "kuberay"
# Beside the checkout, and not part of it: the one thing that a test may lack in CI, too.
SCHEMAS = DEPLOY.parents[1] / "shared" / "schemas"
KINDS = {"RayCluster": "raycluster.yaml", "RayJob": "rayjob.yaml"}
CLIENT = {"redis-state-sync/client": "true"}


def resource(kind: str) -> dict[str, Any]:
    found = yaml.safe_load((FOLDER / KINDS[kind]).read_text())
    assert found["kind"] == kind
    return dict(found)


def cluster_of(kind: str) -> dict[str, Any]:
    spec = resource(kind)["spec"]
    return dict(spec if kind == "RayCluster" else spec["rayClusterSpec"])


def templates(kind: str) -> list[dict[str, Any]]:
    """The pods of the head and of each group of workers."""
    cluster = cluster_of(kind)
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    return [group["template"] for group in groups]


def strict(schema: Any) -> Any:
    """The schema, with every field refused that it does not name, as the API server drops them."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: strict(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and "additionalProperties" not in schema:
        made["additionalProperties"] = False
    if made.get("x-kubernetes-int-or-string"):
        made["type"] = ["integer", "string"]
    return made


def schema_of(kind: str) -> Any:
    path = SCHEMAS / f"kuberay-v1-{kind.lower()}s.json"
    if not path.exists():
        pytest.skip(f"{path.name} is not beside this checkout")
    schema = strict(json.loads(path.read_text()))
    # What the API server knows of every object.
    schema["properties"] |= {"apiVersion": {"const": "ray.io/v1"}, "kind": {"const": kind}}
    schema["properties"]["metadata"] = {"type": "object"}
    return schema


@pytest.mark.parametrize("kind", KINDS)
def test_follows_the_schema_of_kuberay(kind: str) -> None:
    """KubeRay's own schema allows each resource, field by field."""
    jsonschema.validate(resource(kind), schema_of(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_the_schema_is_strict(kind: str) -> None:
    """A misspelt field deep in a pod, and one of a wrong type, are found."""
    text = (FOLDER / KINDS[kind]).read_text()
    for right, wrong in (
        ("secretKeyRef", "secretKeyref"),
        ("maxReplicas: 8", "maxReplicas: many"),
        ("rayStartParams", "rayStartParam"),
        ("containerPort", "containerport"),
    ):
        assert right in text
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(yaml.safe_load(text.replace(right, wrong)), schema_of(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_head_and_workers_get_url_and_password_from_the_secret(kind: str) -> None:
    """Each Ray container has both, by KubeRay's own convention, under the names that we read."""
    password_env = Settings().password_env
    for template in templates(kind):
        for container in template["spec"]["containers"]:
            found = {variable["name"]: variable["valueFrom"] for variable in container["env"]}
            assert found == {
                URL_ENV: {"secretKeyRef": {"name": "redis-state-sync-client", "key": "url"}},
                password_env: {
                    "secretKeyRef": {"name": "redis-state-sync-client", "key": "password"}
                },
            }
    readme = (FOLDER / "README.md").read_text()
    made = re.search(r"create secret generic (\S+)((?:.*\\\n)+.*)", readme)
    assert made
    assert made.group(1) == "redis-state-sync-client"
    assert set(re.findall(r"--from-\w+=(\w+)=", made.group(2))) == {"url", "password"}


@pytest.mark.parametrize("kind", KINDS)
def test_pods_are_let_in_and_have_no_rights_to_spare(kind: str) -> None:
    """The server's NetworkPolicy knows the label; nothing runs as root; images are ours."""
    (rule,) = named("base", "NetworkPolicy", "valkey")["spec"]["ingress"]
    (cross,) = [peer for peer in rule["from"] if "namespaceSelector" in peer]
    readme = (FOLDER / "README.md").read_text()
    ((label, value),) = cross["namespaceSelector"]["matchLabels"].items()
    assert f"kubectl label namespace default {label}={value}" in readme
    for template in templates(kind):
        assert cross["podSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
        context = template["spec"]["securityContext"]
        assert context["runAsNonRoot"] is True
        assert context["runAsUser"] > 0
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in template["spec"]["containers"]:
            own = container["securityContext"]
            assert own["allowPrivilegeEscalation"] is False
            assert own["capabilities"] == {"drop": ["ALL"]}
            assert container["image"] == f"redis-state-sync-ray:{project()['version']}"
            assert container["resources"]["requests"]["memory"]
            limits = container["resources"]["limits"]
            assert limits == {"memory": container["resources"]["requests"]["memory"]}


@pytest.mark.parametrize("kind", KINDS)
def test_version_of_ray_is_one_that_we_test(kind: str) -> None:
    """The resource, the image's base and pyproject.toml agree on the version of Ray."""
    version = cluster_of(kind)["rayVersion"]
    dockerfile = (DEPLOY / "docker" / "Dockerfile.ray").read_text()
    assert re.search(rf"^FROM rayproject/ray:{re.escape(version)}-py\d+$", dockerfile, re.MULTILINE)
    (ray,) = [r for r in project()["optional-dependencies"]["rllib"] if r.startswith("ray")]
    assert Version(version) in SpecifierSet(ray.partition("]")[2])


def test_service_of_the_url_is_there() -> None:
    """The host in README's URL is the Service of deploy/kubernetes, in its namespace."""
    readme = (FOLDER / "README.md").read_text()
    for overlay, pattern in (
        ("base", r"redis://learner@([\w-]+)\.([\w-]+)\.svc:(\d+)"),
        ("ha", r"redis\+sentinel://learner@([\w-]+)\.([\w-]+)\.svc/()state"),
    ):
        found = re.search(pattern, readme)
        assert found, pattern
        service = named(overlay, "Service", found.group(1))
        assert service["metadata"]["namespace"] == found.group(2)
        port = int(found.group(3) or 26379)
        assert port in [one["port"] for one in service["spec"]["ports"]]


def test_the_job_gets_its_program() -> None:
    """kustomize makes the ConfigMap from train.py, and the job mounts it by the name it has."""
    done = subprocess.run(
        [*command(), str(FOLDER)], check=True, capture_output=True, text=True
    ).stdout
    made = {one["kind"]: one for one in yaml.safe_load_all(done)}
    assert made.keys() == {"ConfigMap", "RayJob"}
    # Without this one, the name that the job mounts would lack the hash.
    assert "- references.yaml" in (FOLDER / "kustomization.yaml").read_text()
    assert made["ConfigMap"]["data"] == {"train.py": (FOLDER / "train.py").read_text()}
    pod = made["RayJob"]["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    (volume,) = pod["volumes"]
    assert volume["configMap"]["name"] == made["ConfigMap"]["metadata"]["name"]
    (mount,) = pod["containers"][0]["volumeMounts"]
    assert mount["name"] == volume["name"]
    assert made["RayJob"]["spec"]["entrypoint"] == f"python {mount['mountPath']}/train.py"


def test_runtime_env_holds_no_secret() -> None:
    """runtimeEnvYAML is YAML of the form that Ray takes, with variables that train.py reads."""
    runtime_env = yaml.safe_load(resource("RayJob")["spec"]["runtimeEnvYAML"])
    assert runtime_env.keys() == {"env_vars"}
    program = (FOLDER / "train.py").read_text()
    for name, value in runtime_env["env_vars"].items():
        assert isinstance(value, str)
        assert f'"{name}"' in program
        assert not re.search(r"PASSWORD|SECRET|KEY|URL", name)


@pytest.mark.ray
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["valkey"], scope="module")
def test_the_program_trains_as_the_learner(boot: Boot, tmp_path: Path) -> None:
    """Run with URL and password in its environment, train.py publishes as the user `learner`."""
    port = free_port()
    server = boot(port=port)
    variables = {
        **os.environ,
        "REDIS_STATE_SYNC_URL": f"redis://learner@127.0.0.1:{port}/0",
        "REDIS_STATE_SYNC_PASSWORD": PASSWORDS["learner"],
        "NUM_ENV_RUNNERS": "1",
        "ITERATIONS": "1",
    }
    wrapped = (
        "import ray, runpy; init = ray.init\n"
        "ray.init = lambda: init(num_cpus=3, include_dashboard=False, object_store_memory=10**8)\n"
        f"runpy.run_path({str(FOLDER / 'train.py')!r}, run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", wrapped],
        env=variables,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert re.search(r"^version \d+-\d+, return ", done.stdout, re.MULTILINE)
    assert server.client("root").xlen("rss:{cartpole}:versions")
    assert PASSWORDS["learner"] not in done.stdout + done.stderr
