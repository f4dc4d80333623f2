"""The monitoring services of Compose and Kubernetes: they find each other, with enough rights."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from redis_state_sync import StatePublisher, open_store
from tests.contract.servers import free_port
from tests.deploy.compose import FOLDER, here, in_container, mounts, project
from tests.deploy.conftest import Boot
from tests.deploy.kubernetes import named, pod_of
from tests.deploy.server import DEPLOY, PASSWORDS, find_tool

MONITORING = DEPLOY / "monitoring"


def service(name: str) -> dict[str, Any]:
    return dict(project("monitoring")["services"][name])


def exporter_of(source: str) -> tuple[list[str], dict[str, str]]:
    """Arguments and variables of the exporter, from either of the two."""
    if source == "compose":
        return service("exporter")["command"], service("exporter")["environment"]
    (container,) = pod_of(named("monitoring", "Deployment", "exporter"))["containers"]
    return container["args"], {v["name"]: v["value"] for v in container["env"]}


@contextmanager
def running(command: list[str], **variables: str) -> Iterator[None]:
    process = subprocess.Popen(command, env={"PATH": os.environ["PATH"], **variables})
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def fetched(url: str, within: float = 20) -> str:
    deadline = time.monotonic() + within
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5) as reply:  # noqa: S310 - of our own
                return str(reply.read().decode())
        except OSError:
            assert time.monotonic() < deadline, url
            time.sleep(0.1)


@pytest.mark.parametrize("source", ["compose", "kubernetes"])
def test_exporter_runs_with_the_rights_of_a_monitor(
    boot: Boot, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exporter's own command shows a namespace as the user `monitor`, and is refused nothing.

    The health check of its container passes; with a wrong password the store counts as down.
    """
    redis_port, port = free_port(), free_port()
    server = boot(port=redis_port)
    monkeypatch.setenv("REDIS_STATE_SYNC_PASSWORD", PASSWORDS["learner"])
    store = open_store(f"unix://learner@{server.socket}")
    arguments, variables = exporter_of(source)
    assert "valkey:6379" in variables["REDIS_STATE_SYNC_URL"]
    password = tmp_path / "monitor_password"
    password.write_text(PASSWORDS["monitor"])
    environment = {
        "REDIS_STATE_SYNC_URL": variables["REDIS_STATE_SYNC_URL"].replace(
            "valkey:6379", f"127.0.0.1:{redis_port}"
        ),
        "REDIS_STATE_SYNC_PASSWORD_FILE": str(password),
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
    }
    assert variables.keys() == environment.keys() - {"PYTHONPATH"}
    assert variables["REDIS_STATE_SYNC_PASSWORD_FILE"].endswith("/monitor_password")
    command = [str(Path(sys.executable).with_name("redis-state-sync")), *arguments]
    command[command.index("0.0.0.0")] = "127.0.0.1"
    command[command.index("9108")] = str(port)
    check = [word.replace("9108", str(port)) for word in service("exporter")["healthcheck"]["test"]]
    check = [sys.executable, *check[2:]]
    with closing(StatePublisher(store, "team/run", heartbeat_s=0.2)) as publisher:
        publisher.publish({"counters": {"steps": 1}}).wait(10)
        root = server.client("root", decode_responses=True)
        root.hset("rss:{team/run}:pins", "best", "1-1")
        with running(command, **environment):
            text = fetched(f"http://127.0.0.1:{port}/metrics")
            assert "redis_state_sync_exporter_store_up 1.0" in text
            assert 'namespace="team/run"' in text
            assert subprocess.run(check, check=False).returncode == 0
        assert subprocess.run(check, capture_output=True, check=False).returncode != 0
        refused = [entry["object"] for entry in root.acl_log()]
        assert [name for name in refused if name != "client|setinfo"] == []
        password.write_text("some other password")
        with running(command, **environment):
            text = fetched(f"http://127.0.0.1:{port}/metrics")
            assert "redis_state_sync_exporter_store_up 0.0" in text


def test_prometheus_scrapes_the_services() -> None:
    """Each target of prometheus.yml is a service of the project, at the port where it listens."""
    conf = yaml.safe_load((MONITORING / "prometheus" / "prometheus.yml").read_text())
    targets = {
        target
        for job in conf["scrape_configs"]
        for static in job.get("static_configs", [])
        for target in static["targets"]
    }
    assert targets == {"exporter:9108", "redis-exporter:9121"}
    for target in targets:
        name, _, port = target.partition(":")
        assert port in " ".join(service(name)["healthcheck"]["test"])
    # Rules are named relative to the file; Ray's own list is on a path of the host.
    inside = [target for _, target, _ in mounts(service("prometheus"))]
    for rules in conf["rule_files"]:
        assert f"/etc/prometheus/{rules}" in inside
    (found,) = [
        path
        for job in conf["scrape_configs"]
        for files in job.get("file_sd_configs", [])
        for path in files["files"]
    ]
    assert any(found.startswith(f"{target}/") for target in inside)


def test_grafana_finds_dashboard_and_prometheus() -> None:
    """The data source is the service of the project; the dashboard is where its provider looks."""
    provisioning = MONITORING / "grafana" / "provisioning"
    (source,) = (provisioning / "datasources").iterdir()
    (data,) = yaml.safe_load(source.read_text())["datasources"]
    host, _, port = data["url"].removeprefix("http://").partition(":")
    assert f"127.0.0.1:{port}" in " ".join(service(host)["healthcheck"]["test"])
    (provider_file,) = (provisioning / "dashboards").iterdir()
    (provider,) = yaml.safe_load(provider_file.read_text())["providers"]
    inside = {target: source for source, target, _ in mounts(service("grafana"))}
    assert inside["/etc/grafana/provisioning"] == "../monitoring/grafana/provisioning"
    path = f"{provider['options']['path']}/redis-state-sync.json"
    assert (FOLDER / inside[path]).samefile(MONITORING / "grafana" / "redis-state-sync.json")


def test_redis_exporter_finds_its_password(tmp_path: Path) -> None:
    """The address that redis_exporter is given is the one that its file of passwords has."""
    copy = Path(shutil.copytree(DEPLOY, tmp_path / "d", ignore=shutil.ignore_patterns("secrets")))
    subprocess.run([copy / "compose" / "make-secrets.sh", "monitor", "grafana"], check=True)
    secrets = copy / "compose" / "secrets"
    passwords = yaml.safe_load((secrets / "redis_exporter.json").read_text())
    (container,) = pod_of(named("monitoring", "Deployment", "redis-exporter"))["containers"]
    for command, folder in (
        (service("redis-exporter")["command"], "/run/secrets"),
        (container["args"], "/run/secrets/redis-state-sync"),
    ):
        flags = dict(word.removeprefix("--").split("=", 1) for word in command)
        password = (secrets / "monitor_password").read_text()
        assert passwords == {flags["redis.addr"]: password}
        assert flags["redis.password-file"] == f"{folder}/redis_exporter.json"
        # CONFIG GET would show the password of the user `replica`, so `monitor` may not.
        assert flags["config-command"] == "-"
    # All that the project takes was made.
    for secret in project("monitoring")["secrets"].values():
        assert (copy / "compose" / secret["file"]).stat().st_size


def test_prometheus_starts_by_the_command(tmp_path: Path) -> None:
    """Debian's Prometheus takes the container's command, its settings and the rules."""
    binary = find_tool("prometheus")
    paths = in_container(project("monitoring"), service("prometheus"), FOLDER)
    paths.insert(0, ("/prometheus", str(tmp_path)))
    port = free_port()
    words = []
    for word in service("prometheus")["command"]:
        flag, _, value = word.partition("=")
        words.append(f"{flag}={here(value, paths)}")
    # Mounted one by one there; beside each other here.
    assert any("/monitoring/prometheus/prometheus.yml" in word for word in words)
    with running([binary, *words, f"--web.listen-address=127.0.0.1:{port}"]):
        fetched(f"http://127.0.0.1:{port}/-/healthy")
        groups = yaml.safe_load(fetched(f"http://127.0.0.1:{port}/api/v1/rules"))["data"]["groups"]
    wanted = yaml.safe_load((MONITORING / "prometheus" / "alerts.yaml").read_text())["groups"]
    assert {group["name"] for group in groups} == {group["name"] for group in wanted}
    assert re.search(r"/-/healthy$", service("prometheus")["healthcheck"]["test"][-1])
