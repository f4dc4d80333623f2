"""The compose files: checked by the specification and by what we want of every service."""

from __future__ import annotations

import re
import subprocess
from typing import Any

import pytest
import yaml
from compose_spec import PyCompose

from tests.deploy.compose import FOLDER, PROJECTS, merged, mounts, project
from tests.deploy.profiles import EXPECTED
from tests.deploy.server import DEPLOY

UNITS = {"m": 1 << 20, "g": 1 << 30}
FILES = sorted(FOLDER.glob("compose*.yaml"))
SERVICES = [(name, service) for name in PROJECTS for service in project(name)["services"]]
# The only paths that come from the host and not from the repository.
HOST_PATHS = {"/tmp/ray"}


def service_of(name: str, service: str) -> dict[str, Any]:
    return dict(project(name)["services"][service])


def size(text: str) -> int:
    return int(text[:-1]) * UNITS[text[-1]]


every_service = pytest.mark.parametrize(("name", "service"), SERVICES)
every_project = pytest.mark.parametrize("name", PROJECTS)


def test_every_file_belongs_to_a_project() -> None:
    """Each compose file is one that these tests merge and run."""
    assert {path.name for path in FILES} == {file for files in PROJECTS.values() for file in files}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_follows_the_specification(path: Any) -> None:
    """A strict parser of the Compose Specification reads each file: no unknown key or value."""
    document = yaml.safe_load(path.read_text())
    # It knows no merge keys (<<), which YAML's own reader has resolved.
    compose = PyCompose.from_yaml(yaml.safe_dump(document))
    assert set(compose.service_names()) == document["services"].keys()


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("read_only:", "read_onli:"),
        ("mem_limit: 4g", "mem_limit: 4x"),
        ("interval: 5s", "interval: 5q"),
        ("restart: unless-stopped", "restart: sometimes"),
        ("127.0.0.1:6379:6379", "localhost:6379:6379"),
        ("secrets:\n  users.acl:", "secretz:\n  users.acl:"),
    ],
)
def test_the_parser_is_strict(right: str, wrong: str) -> None:
    """What Compose would refuse, the parser that these tests rely on refuses, too."""
    text = (FOLDER / "compose.yaml").read_text()
    assert right in text
    with pytest.raises(ValueError, match=r"."):
        PyCompose.from_yaml(text.replace(right, wrong))


@every_project
def test_what_is_merged_follows_the_specification(name: str) -> None:
    """So is what the files of a project are together, and all that it refers to is declared."""
    document = project(name)
    PyCompose.from_yaml(yaml.safe_dump(document))
    assert "name" in document
    used_secrets, used_volumes = set(), set()
    for service in document["services"].values():
        used_secrets |= set(service.get("secrets", []))
        used_volumes |= {source for source, _, _ in mounts(service) if source[0] not in "./"}
        assert set(service.get("depends_on", {})) <= document["services"].keys()
    assert used_secrets == document["secrets"].keys()
    assert used_volumes == document["volumes"].keys()


def test_merging_follows_the_documented_rules() -> None:
    """Commands and tests are replaced, lists appended, and volumes are unique by their target."""
    under = {"a": {"command": ["x"], "volumes": ["p:/q", "r:/s"], "secrets": ["u"], "user": "1"}}
    over = {"a": {"command": ["y"], "volumes": ["z:/q:ro"], "secrets": ["u", "v"]}, "b": {}}
    assert merged(under, over) == {
        "a": {
            "command": ["y"],
            "volumes": ["r:/s", "z:/q:ro"],
            "secrets": ["u", "v"],
            "user": "1",
        },
        "b": {},
    }
    assert merged({"test": ["CMD", "a"]}, {"test": ["CMD", "b"]}) == {"test": ["CMD", "b"]}


@every_service
def test_every_mounted_file_exists(name: str, service: str) -> None:
    """What is mounted from here is here, readable by all and cannot be written."""
    volumes = project(name)["volumes"]
    for source, target, mode in mounts(service_of(name, service)):
        if source in volumes:
            assert mode == "rw", target
        elif source == "./secrets/tls":
            assert mode == "ro"
        else:
            assert mode == "ro", target
            assert source in HOST_PATHS or (FOLDER / source).exists(), source


@every_project
def test_secrets_are_files_that_are_never_committed(name: str) -> None:
    """Every secret is a file that git ignores."""
    for secret in [*project(name)["secrets"].values(), {"file": "./secrets/tls/tls.key"}]:
        path = FOLDER / secret["file"]
        command = ["git", "-c", "safe.directory=*", "check-ignore", "-q", "--no-index", path]
        assert subprocess.run(command, cwd=DEPLOY, check=False).returncode == 0, path


@every_service
def test_no_password_is_written_down(name: str, service: str) -> None:
    """No password is in a variable or a command, where `docker inspect` would show it."""
    found = service_of(name, service)
    assert "env_file" not in found
    for variable, value in found.get("environment", {}).items():
        if re.search(r"PASSWORD|SECRET|KEY|TOKEN", variable):
            assert re.search(r"_FILE$|_SECRETS$", variable), variable
            assert value.startswith("/run/secrets")
        assert not re.search(r"://[^/@]*:[^/@]*@", value), variable
    text = yaml.safe_dump(found)
    assert not re.search(r"requirepass|masterauth|REDISCLI_AUTH|--pass\b|[0-9a-f]{24}", text)


@pytest.mark.parametrize(
    ("service", "secrets"),
    {
        "valkey": {"users.acl", "runner_password"},
        "node1": {"users.acl", "runner_password", "replica_password", "sentinel_client_password"},
        "sentinel1": {"sentinel_password", "sentinel_client_password"},
        "exporter": {"monitor_password"},
        "redis-exporter": {"redis_exporter.json"},
        "prometheus": set(),
        "grafana": {"grafana_password"},
    }.items(),
)
def test_services_get_the_secrets_that_they_need(service: str, secrets: set[str]) -> None:
    """Nobody has a password that is not its own: nobody has the learner's, for one."""
    holders = [name for name in PROJECTS if service in project(name)["services"]]
    assert holders
    for name in holders:
        for other, found in project(name)["services"].items():
            if re.sub(r"\d", "", other) == re.sub(r"\d", "", service):
                assert set(found.get("secrets", [])) == secrets


@every_service
def test_reachable_from_this_machine_only(name: str, service: str) -> None:
    """Every published port is bound to loopback, and no network is the host's."""
    found = service_of(name, service)
    assert all(port.startswith("127.0.0.1:") for port in found.get("ports", []))
    assert "network_mode" not in found


@every_service
def test_container_has_no_rights_to_spare(name: str, service: str) -> None:
    """Not root, nothing to write to but its volumes, no capability, and none to be gained."""
    found = service_of(name, service)
    uid, _, gid = found["user"].partition(":")
    assert int(uid) > 0
    # Grafana's image wants group 0, which gives no right by itself.
    assert int(gid) > 0 or service == "grafana"
    assert found["read_only"] is True
    assert found["cap_drop"] == ["ALL"]
    assert "cap_add" not in found
    assert "no-new-privileges:true" in found["security_opt"]
    assert not found.get("privileged")
    assert isinstance(found["pids_limit"], int)
    assert found["restart"] == "unless-stopped"
    assert found["logging"]["options"]["max-size"]


@every_service
def test_image_is_pinned(name: str, service: str) -> None:
    """Every image has a tag that names a version, and one image is the same everywhere."""
    image, _, tag = service_of(name, service)["image"].rpartition(":")
    assert re.match(r"v?\d+\.\d+", tag), (image, tag)
    assert "latest" not in tag
    assert image.count(".") == 0, "no host of a registry"
    others = [s["image"] for p in PROJECTS for s in project(p)["services"].values()]
    assert {other for other in others if other.startswith(f"{image}:")} == {f"{image}:{tag}"}


@every_service
def test_has_a_health_check_and_limits(name: str, service: str) -> None:
    """Every service is looked at, in less time than there is between two looks, and is bounded."""
    found = service_of(name, service)
    check = found["healthcheck"]
    kind, command, *_ = check["test"]
    assert kind == "CMD"
    assert command in ("sh", "wget", "python")
    assert int(check["timeout"][:-1]) < int(check["interval"][:-1])
    assert found["memswap_limit"] == found["mem_limit"]
    assert size(found["mem_limit"])
    assert found["cpus"] > 0


def test_memory_limit_leaves_room_for_a_rewrite() -> None:
    """A server may use twice its maxmemory, and a node its backlog besides; and no swap: C64."""
    twice = 2 * int(EXPECTED["valkey.conf"]["maxmemory"])
    backlog = int(EXPECTED["replica.conf"]["repl-backlog-size"])
    for name in ("single", "tls", "monitoring"):
        assert size(service_of(name, "valkey")["mem_limit"]) >= twice
    for node in ("node1", "node2"):
        assert size(service_of("sentinel", node)["mem_limit"]) >= twice + 2 * backlog
