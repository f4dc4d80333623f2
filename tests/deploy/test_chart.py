"""The values for Valkey's official chart: keys that it has, and what a server makes of them.

The chart is not at hand where tests run. It was rendered by hand with these values (helm 4.1, chart
0.11.0), and its init script run; what it does with each value is stated here.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.contract.servers import free_port
from tests.deploy.kubernetes import SECRETS, named, pod_of
from tests.deploy.profiles import EXPECTED, plain
from tests.deploy.server import DEPLOY, PASSWORDS, find_server, find_tool, render_acl

VALUES = DEPLOY / "chart" / "values.yaml"
CHART = "0.11.0"
# Keys that this version of the chart has, of those that we use. Where it hands a value on as it is
# (resources, probes, policies), the value is Kubernetes' own and is compared with our manifests.
KEYS = {
    "image": {"tag"},
    "valkeyConfig": None,
    "auth": {"enabled", "usersExistingSecret", "aclUsers"},
    "extraValkeySecrets": None,
    "startupProbe": {"enabled", "customProbe"},
    "readinessProbe": {"enabled", "customProbe"},
    "livenessProbe": {"enabled", "customProbe"},
    "resources": None,
    "dataStorage": {"enabled", "requestedSize", "keepPvc"},
    "deploymentStrategy": None,
    "networkPolicy": None,
}
# What the chart writes before ours, and what must therefore not be in ours.
ITS_OWN = {"port", "bind", "protected-mode", "aclfile", "dir"}


@pytest.fixture
def values() -> dict[str, Any]:
    return dict(yaml.safe_load(VALUES.read_text()))


def test_every_key_is_one_of_the_chart(values: dict[str, Any]) -> None:
    """All keys are those of the version that the file names, and `aclUsers` has its fields."""
    assert values.keys() == KEYS.keys()
    for key, fields in KEYS.items():
        if fields is not None:
            assert values[key].keys() <= fields, key
    for user in values["auth"]["aclUsers"].values():
        assert user.keys() == {"permissions", "passwordKey"}
    for secret in values["extraValkeySecrets"]:
        assert secret.keys() <= {"name", "mountPath", "defaultMode"}
    assert set(re.findall(r"\d+\.\d+\.\d+", VALUES.read_text())) == {CHART}


def test_settings_are_those_of_the_profile(values: dict[str, Any]) -> None:
    """valkeyConfig is valkey.conf without what the chart sets, value by value."""
    found: dict[str, str] = {}
    for line in values["valkeyConfig"].splitlines():
        name, _, value = line.partition(" ")
        value = plain(value).replace("replica ", "slave ")
        found[name] = f"{found[name]} {value}" if name in found else value
    expected = EXPECTED["valkey.conf"]
    assert found == {name: expected[name] for name in expected.keys() - ITS_OWN}


def test_the_rest_is_as_in_our_manifests(values: dict[str, Any]) -> None:
    """Image, memory, disk, and who gets in are those of deploy/kubernetes/base."""
    ours = named("base", "StatefulSet", "valkey")
    (container,) = pod_of(ours)["containers"]
    assert container["image"] == f"valkey/valkey:{values['image']['tag']}"
    assert values["resources"] == container["resources"]
    (claim,) = ours["spec"]["volumeClaimTemplates"]
    storage = claim["spec"]["resources"]["requests"]["storage"]
    assert values["dataStorage"]["requestedSize"] == storage
    (theirs,), (own,) = (
        values["networkPolicy"]["ingress"],
        named("base", "NetworkPolicy", "valkey")["spec"]["ingress"],
    )
    assert theirs["from"] == own["from"]
    # The chart calls its port so.
    assert theirs["ports"] == [{"protocol": "TCP", "port": "tcp"}]
    for name in ("startup", "readiness", "liveness"):
        probe = values[f"{name}Probe"]
        assert probe["enabled"] is True
        for field in ("periodSeconds", "timeoutSeconds"):
            assert probe["customProbe"][field] == container[f"{name}Probe"][field]


def acl_of(values: dict[str, Any]) -> str:
    """The users file that the chart's init container writes: `on`, the hash, the permissions."""
    secret = values["auth"]["usersExistingSecret"]
    lines = []
    for name, user in values["auth"]["aclUsers"].items():
        assert user["passwordKey"] in SECRETS[secret]
        password = PASSWORDS[user["passwordKey"].removesuffix("_password")]
        digest = hashlib.sha256(password.encode()).hexdigest()
        lines.append(f"user {name} on #{digest} {user['permissions']}\n")
    return "".join(lines)


@pytest.fixture
def server(values: dict[str, Any], tmp_path: Path) -> Iterator[tuple[int, redis.Redis]]:
    """A server as the chart starts it, with a user that may look at everything."""
    binary, _ = find_server("valkey")
    port = free_port()
    (tmp_path / "users.acl").write_text(acl_of(values) + "user root on >root ~* &* +@all\n")
    own = f"port {port}\nprotected-mode no\nbind 127.0.0.1\ndir {tmp_path}\n"
    conf = tmp_path / "valkey.conf"
    conf.write_text(f"{own}aclfile {tmp_path}/users.acl\n{values['valkeyConfig']}")
    process = subprocess.Popen([binary, conf])
    client = redis.Redis(port=port, username="root", password="root", decode_responses=True)
    try:
        for _ in range(200):
            try:
                client.ping()
                break
            except redis.ConnectionError:
                assert process.poll() is None
        yield port, client
    finally:
        process.terminate()
        process.wait()


def test_server_has_the_settings(server: tuple[int, redis.Redis]) -> None:
    """A server that is started so reports every setting of the profile but the chart's own."""
    got = server[1].config_get("*")
    expected = EXPECTED["valkey.conf"]
    assert {n: got[n] for n in expected.keys() - ITS_OWN} == {
        n: expected[n] for n in expected.keys() - ITS_OWN
    }


def test_users_are_those_of_the_template(server: tuple[int, redis.Redis], tmp_path: Path) -> None:
    """Each user has just the rights that users.acl gives, and the default user gets nobody in."""
    port, client = server
    _, version = find_server("valkey")
    for line in render_acl(tmp_path / "ours.acl", version).read_text().splitlines():
        name = line.split()[1]
        if name in ("default", "replica", "sentinel"):
            continue
        theirs = client.acl_getuser(name)
        client.execute_command("ACL", "SETUSER", "compared", "reset", *split(line)[2:])
        ours = client.acl_getuser("compared")
        assert theirs == ours, name
        client.acl_deluser("compared")
    default = client.acl_getuser("default")
    assert "off" in default["flags"]
    assert "nopass" not in default["flags"]
    assert default["passwords"] == []
    with pytest.raises(redis.AuthenticationError):
        redis.Redis(port=port, retry=Retry(NoBackoff(), 0)).ping()


def split(line: str) -> list[str]:
    """The words of an ACL line; what is in parentheses is one."""
    return re.findall(r"\([^)]*\)|\S+", line)


def test_probe_logs_in(
    values: dict[str, Any], server: tuple[int, redis.Redis], tmp_path: Path
) -> None:
    """The probe passes with the runner's password, and fails with a wrong one: really run."""
    port, _ = server
    cli = find_tool("valkey-cli", "redis-cli")
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "valkey-cli").write_text(f'#!/bin/sh\nexec {cli} -p {port} "$@"\n')
    (tools / "valkey-cli").chmod(0o755)
    mount = values["extraValkeySecrets"][0]["mountPath"]
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    for probe in ("startupProbe", "readinessProbe"):
        *shell, script = values[probe]["customProbe"]["exec"]["command"]
        assert f"{mount}/runner_password" in script
        for password, healthy in ((PASSWORDS["runner"], True), ("wrong", False)):
            (secrets / "runner_password").write_text(password)
            done = subprocess.run(
                [*shell, script.replace(mount, str(secrets))],
                env={"PATH": f"{tools}:{os.environ['PATH']}"},
                check=False,
            )
            assert (done.returncode == 0) == healthy
