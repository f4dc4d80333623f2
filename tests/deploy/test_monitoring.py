"""Dashboard, alert rules and Prometheus' configuration: what they ask for is really there.

That the names of the table are what is exported is tested where it is exported: test_prometheus.py,
test_exporter.py and test_ray_metrics.py.
"""

from __future__ import annotations

import copy
import importlib.util
import inspect
import itertools
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from redis_state_sync.cli.exporter import exporter
from redis_state_sync.instruments import INSTRUMENTS
from tests.deploy.promql import groupings, selectors
from tests.deploy.server import DEPLOY, find_tool

MONITORING = DEPLOY / "monitoring"
PROMETHEUS = MONITORING / "prometheus"
GRAFANA = MONITORING / "grafana"
DASHBOARD = GRAFANA / "redis-state-sync.json"
INTERVAL = "5m"

# As that project names them (github.com/oliver006/redis_exporter, exporter/exporter.go).
REDIS_EXPORTER = {
    "redis_up": (),
    "redis_aof_last_write_status": (),
    "redis_commands_duration_seconds_total": ("cmd",),
    "redis_commands_total": ("cmd",),
    "redis_connected_clients": (),
    "redis_evicted_keys_total": (),
    "redis_max_clients": (),
    "redis_memory_max_bytes": (),
    "redis_memory_used_bytes": (),
    "redis_net_input_bytes_total": (),
    "redis_net_output_bytes_total": (),
    "redis_rdb_last_bgsave_status": (),
    "redis_rejected_connections_total": (),
}
RAY_LABELS = {"SessionName", "WorkerId", "NodeAddress"}


def known() -> dict[str, set[str]]:
    """Every time series that there is -> its labels."""
    found = {name: {*labels, "instance", "job"} for name, labels in REDIS_EXPORTER.items()}
    found["up"] = {"instance", "job"}
    for each in INSTRUMENTS:
        for name in each.series:
            le = {"le"} if name.endswith("_bucket") else set()
            found[name] = {*each.all_labels, *le, "instance", "job"}
            if each.source != "exporter":
                found[f"ray_{name}"] = found[name] | RAY_LABELS
    return found


def document(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def rules() -> list[dict[str, Any]]:
    return [r for g in document(PROMETHEUS / "alerts.yaml")["groups"] for r in g["rules"]]


def panels() -> list[dict[str, Any]]:
    """All panels, those of collapsed rows, too."""
    top = json.loads(DASHBOARD.read_text())["panels"]
    return [*top, *itertools.chain.from_iterable(panel.get("panels", ()) for panel in top)]


def graphs() -> list[dict[str, Any]]:
    return [panel for panel in panels() if panel["type"] != "row"]


def substituted(text: str) -> str:
    """As Grafana asks for it."""
    return (
        text.replace("$__rate_interval", INTERVAL)
        .replace("$SessionName", ".*")
        .replace("$namespace", ".*")
    )


def queries() -> Iterator[tuple[str, str]]:
    """Where it is, and PromQL: of every panel and every rule."""
    for panel in graphs():
        for target in panel["targets"]:
            yield f"{panel['title']} {target['refId']}", substituted(target["expr"])
    for rule in rules():
        yield rule["alert"], rule["expr"]


QUERIES = list(queries())
each_query = pytest.mark.parametrize(("where", "query"), QUERIES, ids=[q[0] for q in QUERIES])


@each_query
def test_metrics_exist(where: str, query: str) -> None:
    """Each query parses, and asks for metrics that exist, by labels that they have."""
    there = known()
    asked = selectors(query)
    assert asked
    labels = set()
    for each in asked:
        assert each.name in there, each.name
        assert each.labels <= there[each.name], each
        labels |= there[each.name]
    assert groupings(query) <= labels


@each_query
def test_counters_are_rates(where: str, query: str) -> None:
    """A counter, and a histogram's series, are asked for over time: their height means nothing."""
    for each in selectors(query):
        counts = re.search(r"_(total|bucket|sum|count)$", each.name)
        if counts and "claims_total" not in each.name:  # One or two in a learner's life.
            assert each.over_time, each


@each_query
def test_what_runs_outside_ray_is_asked_for_too(where: str, query: str) -> None:
    """A metric of learners and readers is asked for with and without Ray's prefix."""
    names = {each.name for each in selectors(query)}
    own = {name for each in INSTRUMENTS if each.source != "exporter" for name in each.series}
    assert {name.removeprefix("ray_") for name in names if name.startswith("ray_")} == names & own


def test_every_metric_is_used() -> None:
    """Every metric of the table is in some panel; none is exported for nobody."""
    asked = {s.name.removeprefix("ray_") for panel in graphs() for s in _asked_by(panel)}
    unused = [each.name for each in INSTRUMENTS if not asked & set(each.series)]
    assert unused == []


def _asked_by(panel: dict[str, Any]) -> Iterator[Any]:
    for target in panel["targets"]:
        yield from selectors(substituted(target["expr"]))


def promtool(*words: str | Path, code: int = 0) -> str:
    """What promtool says of a file."""
    done = subprocess.run(
        [find_tool("promtool"), *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_prometheus_takes_the_rules() -> None:
    """promtool finds nothing wrong with the rules, nor with the texts that they make."""
    assert f"{len(rules())} rules found" in promtool("check", "rules", PROMETHEUS / "alerts.yaml")


def test_prometheus_takes_the_panels(tmp_path: Path) -> None:
    """Prometheus' own parser takes the query of each panel."""
    recorded = [
        {"record": f"panel:{number}", "expr": query} for number, (_, query) in enumerate(QUERIES)
    ]
    path = tmp_path / "panels.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": recorded}]}))
    assert f"{len(QUERIES)} rules found" in promtool("check", "rules", path)


def test_prometheus_takes_the_configuration() -> None:
    """promtool takes prometheus.yml together with the rules that it loads."""
    said = promtool("check", "config", PROMETHEUS / "prometheus.yml")
    assert "alerts.yaml" in said


def test_alerts_fire_when_they_should() -> None:
    """The unit tests of the rules hold."""
    promtool("test", "rules", PROMETHEUS / "alerts_test.yaml")


def expectations() -> Iterator[tuple[str, bool]]:
    """Alert, and whether it is expected to fire, for each expectation of alerts_test.yaml."""
    for test in document(PROMETHEUS / "alerts_test.yaml")["tests"]:
        for expected in test["promql_expr_test"]:
            match = re.search(r'ALERTS\{alertname="(\w+)", alertstate="firing"\}', expected["expr"])
            assert match, expected
            yield match[1], bool(expected["exp_samples"])


@pytest.mark.parametrize("fires", [True, False])
def test_every_alert_is_tried(fires: bool) -> None:
    """Each alert has a test in which it fires, and one in which it does not."""
    tried = {alert for alert, expected in expectations() if expected is fires}
    assert tried == {rule["alert"] for rule in rules()}


@pytest.mark.parametrize("expr", ["vector(1)", "vector(1) == 0"], ids=["always", "never"])
def test_the_expectations_can_fail(expr: str, tmp_path: Path) -> None:
    """An alert that always fires, or never does, is found out by its own tests."""
    groups = document(PROMETHEUS / "alerts.yaml")
    changed = copy.deepcopy(groups)
    for group in changed["groups"]:
        for rule in group["rules"]:
            rule["expr"] = expr
            rule.pop("for", None)
    (tmp_path / "alerts.yaml").write_text(yaml.safe_dump(changed))
    tests = tmp_path / "alerts_test.yaml"
    tests.write_text((PROMETHEUS / "alerts_test.yaml").read_text())
    said = promtool("test", "rules", tests, code=1)
    failed = set(re.findall(r'ALERTS\{alertname=\\?"(\w+)\\?"', said))
    assert failed == {rule["alert"] for rule in rules()}


def test_alerts_say_what_they_must() -> None:
    """Each alert has a severity, what it is, what it means, and where to read on."""
    names = [rule["alert"] for rule in rules()]
    assert len(names) == len(set(names))
    for rule in rules():
        assert re.fullmatch(r"RedisStateSync[A-Z]\w+", rule["alert"])
        assert rule["labels"].keys() == {"severity"}
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}
        # What is gone by itself in a moment is no alert; what looks back over minutes has waited.
        assert "for" in rule or re.search(r"\[1\dm\]", rule["expr"]), rule["alert"]


def test_alerts_name_labels_that_they_have() -> None:
    """What a text fills in is a label that is left when the expression is evaluated."""
    there = known()
    for rule in rules():
        used = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
        grouped = groupings(rule["expr"])
        if re.match(r"(sum|min|max|histogram_quantile\(.*?sum) by", rule["expr"]):
            assert used <= grouped, rule["alert"]
        for each in selectors(rule["expr"]):
            assert used <= there[each.name], rule["alert"]


def test_what_is_scraped() -> None:
    """Each job that a rule asks for is scraped, and the exporter where it listens by default."""
    config = document(PROMETHEUS / "prometheus.yml")
    jobs = {job["job_name"]: job for job in config["scrape_configs"]}
    asked = re.findall(r'job="([^"]+)"', (PROMETHEUS / "alerts.yaml").read_text())
    assert asked
    assert set(asked) <= jobs.keys()
    (target,) = jobs["redis-state-sync"]["static_configs"][0]["targets"]
    assert int(target.rpartition(":")[2]) == inspect.signature(exporter).parameters["port"].default
    assert jobs["ray"]["file_sd_configs"] == [
        {"files": ["/tmp/ray/prom_metrics_service_discovery.json"]}
    ]
    assert config["rule_files"] == ["alerts.yaml"]


def test_the_dashboard_is_what_its_script_writes() -> None:
    """redis-state-sync.json was written by make_dashboard.py as it is now."""
    spec = importlib.util.spec_from_file_location("make", GRAFANA / "make_dashboard.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.text() == DASHBOARD.read_text()


def test_panels_have_their_place() -> None:
    """No two panels overlap or have a number in common, and all are within the width."""
    everything = panels()
    numbers = [panel["id"] for panel in everything]
    assert len(numbers) == len(set(numbers))
    taken: dict[tuple[int, int], str] = {}
    for panel in everything:
        place = panel["gridPos"]
        assert 0 <= place["x"] < place["x"] + place["w"] <= 24
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert taken.setdefault((x, y), panel["title"]) == panel["title"]


def test_panels_ask_a_question() -> None:
    """Each panel has a question for its title, says what it shows, and has a unit."""
    titles = [panel["title"] for panel in graphs()]
    assert len(titles) == len(set(titles))
    for panel in graphs():
        assert "?" in panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["targets"]
    for words in ("Is anyone stale?", "Is Redis slow?", "Who writes?"):
        assert any(words in title for title in titles)


def test_any_prometheus_will_do() -> None:
    """No data source and no dashboard is named by an id of one installation."""
    text = DASHBOARD.read_text()
    assert set(re.findall(r'"uid": "(.*?)"', text)) == {"${datasource}"}
    for panel in graphs():
        for each in (panel, *panel["targets"]):
            assert each["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    for path in GRAFANA.rglob("*.yaml"):
        assert "uid" not in path.read_text()


def test_variables() -> None:
    """There are Ray's own variables, and namespace; every query of what is in Ray uses both."""
    variables = json.loads(DASHBOARD.read_text())["templating"]["list"]
    assert [v["name"] for v in variables] == ["datasource", "SessionName", "namespace"]
    for panel in graphs():
        for target in panel["targets"]:
            for name, labels in re.findall(r"(\w+)\{(.*?)\}", target["expr"]):
                session = 'SessionName=~"$SessionName"' in labels
                assert session == name.startswith("ray_"), target["expr"]
                assert 'state_namespace=~"$namespace"' in labels or name.startswith(
                    "redis_commands"
                )
    there = known()
    for variable in variables[1:]:
        pattern = re.search(r"label_values\((.*), (\w+)\)", variable["definition"])
        assert pattern
        for name in names_of(pattern[1]):
            assert pattern[2] in there[name]


def names_of(text: str) -> list[str]:
    """The metrics that a variable's values come from."""
    match = re.fullmatch(r'\{__name__=~"(.*)"\}', text)
    found = [name for name in known() if re.fullmatch(match[1] if match else text, name)]
    assert found, text
    return found


def test_legends_name_labels_that_are_left() -> None:
    """What a legend fills in is a label of the metric, or one by which it is grouped."""
    there = known()
    for panel in graphs():
        for target in panel["targets"]:
            query = substituted(target["expr"])
            used = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            left = groupings(query) or set.intersection(*(there[s.name] for s in selectors(query)))
            assert used <= left, target


def test_what_grafana_provisions() -> None:
    """Grafana finds Prometheus, and the dashboard in the folder where it is mounted."""
    (source,) = document(GRAFANA / "provisioning/datasources/prometheus.yaml")["datasources"]
    assert source["type"] == "prometheus"
    assert source["isDefault"]
    provider = document(GRAFANA / "provisioning/dashboards/redis-state-sync.yaml")["providers"][0]
    assert provider["type"] == "file"
    assert provider["options"]["path"] == "/var/lib/grafana/dashboards"
