"""What docs/monitoring.md says of metrics and alerts is so, and nothing is missing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from redis_state_sync.instruments import INSTRUMENTS, PREFIX, Instrument, Source, of
from tests.docs.test_docs import ROOT, code_blocks, run

PAGE = ROOT / "docs" / "monitoring.md"
SECTIONS: dict[str, Source] = {
    "Of learners": "learner",
    "Of readers": "reader",
    "Of both": "both",
    "Of the exporter": "exporter",
}


def section(title: str) -> str:
    """The text below a heading, up to the next one."""
    parts = re.split(r"^#+ (.*)$", PAGE.read_text(), flags=re.M)
    return parts[parts.index(title) + 1]


def row(instrument: Instrument) -> str:
    own = ", ".join(f"`{label}`" for label in instrument.labels)
    return f"| `{instrument.name}` | {instrument.kind} | {own} | {instrument.help} |"


@pytest.mark.parametrize("title", SECTIONS)
def test_every_metric_is_documented(title: str) -> None:
    """Each table has the metrics of its source, in order, with kind, labels and meaning."""
    rows = [line for line in section(title).splitlines() if line.startswith("| `")]
    assert rows == [row(each) for each in of(SECTIONS[title])]


def test_no_other_metric_is_named() -> None:
    """Every name of ours in the text is a metric's, or that of one of its time series."""
    known = {name for each in INSTRUMENTS for name in (each.name, *each.series)}
    named = set(re.findall(rf"(?:ray_)?({PREFIX}\w+)", PAGE.read_text()))
    assert named <= known
    assert {each.name for each in INSTRUMENTS} <= named


def test_every_alert_has_its_runbook() -> None:
    """Each alert has a section of that name that says more than the alert, and no other has one."""
    alerts = alert_rules()
    titles = re.findall(r"^### (RedisStateSync\w+)$", PAGE.read_text(), re.M)
    assert titles == [rule["alert"] for rule in alerts]
    for title in titles:
        meaning, *what_to_do = section(title).strip().split("\n\n")
        assert len(meaning) > 40, title
        assert len(" ".join(what_to_do)) > 80, title


def alert_rules() -> list[dict[str, Any]]:
    path = ROOT / "deploy" / "monitoring" / "prometheus" / "alerts.yaml"
    return [rule for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]


def test_runbook_links_lead_somewhere() -> None:
    """The link of each alert is to its own section of this page."""
    for rule in alert_rules():
        path, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert ROOT / path == PAGE
        assert anchor == rule["alert"].lower()


def test_questions_of_the_dashboard() -> None:
    """The page names each row of the dashboard."""
    text = " ".join(PAGE.read_text().split())
    dashboard = (ROOT / "deploy/monitoring/grafana/redis-state-sync.json").read_text()
    rows = re.findall(r'"type": "row",\n\s+"id": \d+,\n\s+"title": "(.*?\?)', dashboard)
    assert len(rows) > 4
    for title in rows:
        assert title in text, title


def test_the_example_runs(tmp_path: Path) -> None:
    """The lines for readers outside Ray run, and what they serve has both sides' metrics."""
    (code,) = code_blocks("docs/monitoring.md", "python")
    code = code.replace("9100", "0")  # Any port.
    check = (
        "\nprint(prometheus_client.generate_latest().decode())"
        "\nimport sys; assert not {'ray', 'torch'} & sys.modules.keys()"
    )
    output = run(code + check, tmp_path)
    for name, role in (
        ("published_version_number", "learner"),
        ("applied_version_number", "reader"),
    ):
        assert f'{PREFIX}{name}{{role="{role}",state_namespace="my-run"}} 1.0' in output
