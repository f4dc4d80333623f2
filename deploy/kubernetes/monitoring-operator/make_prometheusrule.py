"""Writes prometheusrule.yaml from the alert rules that Prometheus reads, as its operator wants it.

python deploy/kubernetes/monitoring-operator/make_prometheusrule.py
"""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).resolve().parent
RULES = HERE.parents[1] / "monitoring" / "prometheus" / "alerts.yaml"
HEAD = """\
# Made by make_prometheusrule.py: edit deploy/monitoring/prometheus/alerts.yaml instead.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: redis-state-sync
spec:
"""


def rendered() -> str:
    """The manifest: the rules as they stand, two spaces further in."""
    lines = RULES.read_text().splitlines()
    return HEAD + "".join(f"  {line}".rstrip() + "\n" for line in lines)


if __name__ == "__main__":
    (HERE / "prometheusrule.yaml").write_text(rendered())
