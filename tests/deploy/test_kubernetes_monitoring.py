"""The monitoring manifests: they fit the servers, and hold the files of deploy/monitoring."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.kubernetes import (
    CLIENT,
    FOLDER,
    command,
    containers,
    labels_of,
    named,
    of_kind,
    ports_of,
    words_of,
    workloads,
)
from tests.deploy.server import DEPLOY


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


def test_kustomization_of_the_readme(tmp_path: Path) -> None:
    """What README shows to put on top builds: server and exporters in a namespace of one's own."""
    (block,) = re.findall(r"^```yaml\n(.*?)^```", (FOLDER / "README.md").read_text(), re.M | re.S)
    shutil.copytree(
        DEPLOY,
        tmp_path / "redis-state-sync" / "deploy",
        ignore=shutil.ignore_patterns("secrets"),
    )
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "kustomization.yaml").write_text(block)
    done = subprocess.run(
        [*command(), str(tmp_path / "own")], check=True, capture_output=True, text=True
    )
    found = list(yaml.safe_load_all(done.stdout))
    assert {one["metadata"].get("namespace") for one in found} == {"my-team", None}
    assert {one["kind"] for one in found} >= {"StatefulSet", "Deployment", "Namespace"}
    # Names within a URL are short, so they are those of this namespace, too.
    (exporter,) = [one for one in found if one["metadata"]["name"] == "exporter"]
    assert "@valkey:6379" in " ".join(words_of(containers(exporter)[0]))
