#!/usr/bin/env python3
"""Writes redis-state-sync.json, beside this file. Change the panels here, and run it.

In Ray, metrics have the prefix `ray_` and the label SessionName; outside of it they have neither.
Where both can be, a panel shows both.
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Any

TARGET = Path(__file__).with_name("redis-state-sync.json")
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH = 24
OWN = "redis_state_sync_"

RAY = 'SessionName=~"$SessionName", state_namespace=~"$namespace"'
PLAIN = 'state_namespace=~"$namespace"'

Query = tuple[str, str]
"""PromQL, and the legend of its series."""


def both(query: str) -> str:
    """A query of the metrics ``@name`` of learners and readers, in Ray and outside of it."""
    ray = _filled(query, f"ray_{OWN}", RAY)
    plain = _filled(query, OWN, PLAIN)
    return f"{ray} or {plain}"


def _filled(query: str, prefix: str, labels: str) -> str:
    return query.replace("@", prefix).replace("{", "{" + labels + ", ").replace(", }", "}")


def exporter(query: str) -> str:
    """A query of the exporter's metrics ``@name`` of a namespace."""
    return _filled(query, OWN, PLAIN)


def rate(name: str, by: str = "state_namespace, role") -> str:
    """How fast a counter grows."""
    return both(f"sum by ({by}) (rate(@{name}{{}}[$__rate_interval]))")


def quantiles(name: str, *wanted: float) -> list[Query]:
    """Quantiles of a histogram, over all processes of a role."""
    return [
        (
            both(
                f"histogram_quantile({q}, sum by (state_namespace, role, le) "
                f"(rate(@{name}_bucket{{}}[$__rate_interval])))"
            ),
            f"{{{{state_namespace}}}} {{{{role}}}} p{q * 100:g}",
        )
        for q in wanted
    ]


EACH = "{{state_namespace}} {{role}}"
NS = "{{state_namespace}}"


def panel(
    kind: str,
    title: str,
    description: str,
    *queries: Query,
    unit: str = "short",
    width: int = 8,
    red_from: float | None = None,
    green_from: float | None = None,
    **more: Any,
) -> dict[str, Any]:
    """One panel, without its place.

    Args:
        kind: Grafana's name of it.
        title: A question.
        description: How to read the answer.
        queries: What it shows.
        unit: Grafana's name of it.
        width: Of 24.
        red_from: From here on a value is bad.
        green_from: From here on a value is good, and below it bad.
        more: Of the panel's own fields.
    """
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if red_from is not None:
        steps.append({"color": "red", "value": red_from})
    if green_from is not None:
        steps = [{"color": "red", "value": None}, {"color": "green", "value": green_from}]
    defaults: dict[str, Any] = {"unit": unit, "min": 0}
    if len(steps) > 1:
        defaults["thresholds"] = {"mode": "absolute", "steps": steps}
    if kind == "timeseries":
        defaults["custom"] = {"fillOpacity": 10, "lineWidth": 1, "showPoints": "never"}
        if len(steps) > 1:
            defaults["custom"]["thresholdsStyle"] = {"mode": "line"}
    options: dict[str, Any] = {}
    if kind == "timeseries":
        options = {
            "legend": {
                "displayMode": "table",
                "placement": "bottom",
                "calcs": ["lastNotNull", "max"],
            },
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    if kind == "stat":
        options = {"colorMode": "background", "textMode": "value_and_name"}
    table = kind == "table"
    return {
        "type": kind,
        "title": title,
        "description": description,
        "datasource": DATASOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": [
            {
                "datasource": DATASOURCE,
                "refId": chr(ord("A") + number),
                "expr": expr,
                "legendFormat": legend,
                **({"format": "table", "instant": True} if table else {}),
            }
            for number, (expr, legend) in enumerate(queries)
        ],
        "gridPos": {"w": width, "h": 8},
        **more,
    }


def series(title: str, description: str, *queries: Query, **more: Any) -> dict[str, Any]:
    """A panel of lines over time."""
    return panel("timeseries", title, description, *queries, **more)


STALE = [
    series(
        "Is anyone stale? Versions behind",
        "Versions between what a reader acts with and the newest that its polls have shown. Above "
        "0 for longer than a fetch takes: it can not fetch or apply what is there.",
        (both("max by (state_namespace, role) (@lag_versions{})"), EACH),
        (exporter("@namespace_reader_lag_versions{}"), f"{NS} by the store's notes"),
        red_from=5,
    ),
    series(
        "For how long has a reader applied nothing?",
        "Of the reader that has waited longest. It grows while the learner publishes nothing, too.",
        (both("max by (state_namespace, role) (time() - @applied_timestamp_seconds{})"), EACH),
        unit="s",
    ),
    series(
        "How old is what readers act with?",
        "Since it was published, by the clocks of the learner and of Prometheus.",
        (
            both(
                "max by (state_namespace, role) (time() - @applied_published_timestamp_seconds{})"
            ),
            EACH,
        ),
        unit="s",
    ),
    series(
        "How many readers are behind, as the store sees it?",
        "Readers that fetched an older version than the newest one, of those that are not gone. "
        "Needs the exporter.",
        (exporter("@namespace_readers_behind{}"), f"{NS} behind"),
        (exporter("@namespace_readers{}"), f"{NS} all"),
    ),
    series(
        "For how long has the last reader been behind?",
        "Since a version was there that it has not fetched. Needs the exporter.",
        (exporter("@namespace_reader_lag_seconds{}"), NS),
        unit="s",
        red_from=60,
    ),
    series(
        "Who goes beyond the limits of staleness?",
        "Refreshes in a second that began beyond max_staleness_s or max_staleness_versions, and "
        "the share of time that was waited because of it.",
        (rate("stale_total"), f"{EACH} refreshes"),
        (rate("stale_wait_seconds_total"), f"{EACH} waiting"),
        unit="ops",
    ),
]

SLOW = [
    series(
        "Is Redis slow? Polls",
        "Polls that went to the store: they are given up after poll_timeout_s, 50 ms by default. "
        "And a learner's looks after what is stored.",
        *quantiles("poll_seconds", 0.5, 0.9, 0.99),
        *quantiles("look_seconds", 0.9),
        unit="s",
        red_from=0.01,
    ),
    series(
        "How long does a fetch take?",
        "Of all blobs that a reader lacks.",
        *quantiles("fetch_seconds", 0.5, 0.9),
        unit="s",
    ),
    series(
        "How long does a publish take?",
        "From its start until the version is announced.",
        *quantiles("publish_seconds", 0.5, 0.9),
        unit="s",
    ),
    series(
        "How long does applying take?",
        "This is the reader's own work: Redis has no part in it.",
        *quantiles("apply_seconds", 0.5, 0.9),
        unit="s",
    ),
    series(
        "Does the store answer?",
        "1 if it did what it was asked last. The least over a role's processes, and the exporter.",
        (both("min by (state_namespace, role) (@store_up{})"), EACH),
        ("min(redis_state_sync_exporter_store_up)", "exporter"),
        green_from=1,
        max=1,
    ),
    series(
        "What fails?",
        "Failures in a second, by operation and category; docs/metrics.md says what each means.",
        (
            rate("failures_total", "state_namespace, role, operation, category"),
            f"{EACH} {{{{operation}}}} {{{{category}}}}",
        ),
        unit="ops",
    ),
]

WRITER = [
    panel(
        "table",
        "Who writes?",
        "Who published the newest version, or took over since. Needs the exporter.",
        (exporter("@namespace_writer_info{}"), ""),
        width=16,
        transformations=[
            {
                "id": "organize",
                "options": {"excludeByName": {"Time": True, "Value": True, "__name__": True}},
            }
        ],
    ),
    panel(
        "stat",
        "Is a learner at work?",
        "1 if one looks after the namespace. Needs the exporter.",
        (exporter("@namespace_learner_up{}"), NS),
        green_from=1,
    ),
    series(
        "How fast do versions follow each other?",
        "Versions that a learner stored, in a second.",
        (rate("publish_seconds_count"), NS),
        unit="ops",
    ),
    series(
        "How old is the newest version?",
        "As the learner has it, and as the store does.",
        (
            both("min by (state_namespace) (time() - @published_timestamp_seconds{})"),
            f"{NS} learner",
        ),
        (exporter("@namespace_version_age_seconds{}"), f"{NS} store"),
        unit="s",
    ),
    series(
        "Did another learner take over?",
        "Each claim has a greater generation. A learner that is refused is fenced until it ends.",
        (exporter("changes(@namespace_generation{}[$__rate_interval])"), f"{NS} generations"),
        (both("max by (state_namespace) (@fenced{})"), f"{NS} fenced"),
        (both("max by (state_namespace) (@claims_total{})"), f"{NS} claims of one learner"),
        red_from=2,
    ),
]

VOLUME = [
    series(
        "How much is fetched?",
        "Bytes of blobs in a second that came from the store, not those that a node had already.",
        (rate("fetched_bytes_total"), EACH),
        unit="Bps",
    ),
    series(
        "How much is sent, and how much need not be?",
        "Blobs that the store has already are not sent again.",
        (rate("sent_bytes_total", "state_namespace"), f"{NS} sent"),
        (rate("saved_bytes_total", "state_namespace"), f"{NS} saved"),
        unit="Bps",
    ),
    series(
        "How often do readers look?",
        "Polls in a second, and those that went to the store: with tracking most do not.",
        (rate("polls_total"), f"{EACH} all"),
        (rate("poll_seconds_count"), f"{EACH} asked"),
        unit="ops",
    ),
    series(
        "Which versions does nobody see?",
        "Dropped: replaced before they were sent. Skipped: replaced before a reader fetched them.",
        (rate("dropped_versions_total"), f"{EACH} dropped"),
        (rate("skipped_versions_total"), f"{EACH} skipped"),
        unit="ops",
    ),
    series(
        "Does RLlib push?",
        "Syncs in a second that went Ray's own way while the store was down.",
        (rate("pushes_total", "state_namespace"), NS),
        unit="ops",
    ),
    series(
        "Which version is where?",
        "The number that was published last, in the store, and with the reader furthest behind. It "
        "begins at 1 with each learner.",
        (both("max by (state_namespace) (@published_version_number{})"), f"{NS} published"),
        (exporter("@namespace_version_number{}"), f"{NS} stored"),
        (both("min by (state_namespace, role) (@applied_version_number{})"), f"{EACH} applied"),
    ),
]

STORED = [
    series(
        "Who still acts with an older learner's weights?",
        "Readers whose version is of an older generation than the newest learner's.",
        (
            both(
                "count by (state_namespace, role) (@applied_generation{} < on (state_namespace) "
                "group_left max by (state_namespace) (@generation{}))"
            ),
            EACH,
        ),
        red_from=1,
        width=6,
    ),
    series(
        "How large is a state?",
        "The blobs of the newest version. Needs the exporter.",
        (exporter("@namespace_state_bytes{}"), NS),
        unit="bytes",
        width=6,
    ),
    series(
        "How many versions are kept?",
        "Those in history, those that are pinned, and those whose record can not be read. Needs "
        "the exporter.",
        (exporter("@namespace_versions{}"), f"{NS} stored"),
        (exporter("@namespace_pinned_versions{}"), f"{NS} pinned"),
        (exporter("@namespace_unreadable_versions{}"), f"{NS} unreadable"),
        width=6,
    ),
    series(
        "Is the exporter well?",
        "Seconds that a look takes, and since the last one that succeeded; failures in a second.",
        ("redis_state_sync_exporter_look_seconds", "look"),
        ("time() - redis_state_sync_exporter_look_timestamp_seconds", "age"),
        ("rate(redis_state_sync_exporter_errors_total[$__rate_interval])", "errors {{category}}"),
        unit="s",
        width=6,
    ),
]

REDIS = [
    series(
        "Is its memory full?",
        "maxmemory 0 means that there is no limit.",
        ("redis_memory_used_bytes", "{{instance}} used"),
        ("redis_memory_max_bytes > 0", "{{instance}} maxmemory"),
        unit="bytes",
    ),
    series(
        "How long do its commands take?",
        "In the server itself, in the mean; the network comes on top.",
        (
            'rate(redis_commands_duration_seconds_total{cmd=~"xrevrange|xadd|get|set"}'
            "[$__rate_interval]) / "
            'rate(redis_commands_total{cmd=~"xrevrange|xadd|get|set"}[$__rate_interval])',
            "{{instance}} {{cmd}}",
        ),
        unit="s",
    ),
    series(
        "How much does it send and receive?",
        "",
        ("rate(redis_net_output_bytes_total[$__rate_interval])", "{{instance}} sent"),
        ("rate(redis_net_input_bytes_total[$__rate_interval])", "{{instance}} received"),
        unit="Bps",
    ),
    series(
        "Who is connected?",
        "Every EnvRunner is one client.",
        ("redis_connected_clients", "{{instance}} clients"),
        ("redis_max_clients", "{{instance}} maxclients"),
    ),
    series(
        "Does it lose anything?",
        "Evicted keys and refused connections in a second: both must be 0.",
        ("rate(redis_evicted_keys_total[$__rate_interval])", "{{instance}} evicted"),
        ("rate(redis_rejected_connections_total[$__rate_interval])", "{{instance}} refused"),
        unit="ops",
        red_from=0.001,
    ),
    series(
        "Is it up, and can it write to its disk?",
        "1 is yes.",
        ("redis_up", "{{instance}} up"),
        ("redis_rdb_last_bgsave_status", "{{instance}} snapshot"),
        ("redis_aof_last_write_status", "{{instance}} append-only file"),
        green_from=1,
    ),
]

ROWS: list[tuple[str, bool, list[dict[str, Any]]]] = [
    ("Is anyone stale?", False, STALE),
    ("Is Redis slow?", False, SLOW),
    ("Who writes?", False, WRITER),
    ("How much goes where?", False, VOLUME),
    ("What does the store hold?", False, STORED),
    ("How is Redis itself? (redis_exporter)", True, REDIS),
]


def variable(name: str, query: str, description: str, **more: Any) -> dict[str, Any]:
    """A filter that Prometheus knows the values of."""
    return {
        "name": name,
        "type": "query",
        "description": description,
        "datasource": DATASOURCE,
        "definition": query,
        "query": {"query": query, "refId": "StandardVariableQuery"},
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        "multi": False,
        "refresh": 2,
        "sort": 2,
        **more,
    }


VARIABLES = [
    {"name": "datasource", "type": "datasource", "query": "prometheus", "hide": 0, "refresh": 1},
    variable(
        "SessionName",
        f"label_values(ray_{OWN}store_up, SessionName)",
        "Ray sessions. What runs outside Ray has none, and is always shown.",
    ),
    variable(
        "namespace",
        f'label_values({{__name__=~"(ray_)?{OWN}(store_up|namespace_versions)"}}, state_namespace)',
        "Namespaces of states.",
        multi=True,
    ),
]


def placed(numbers: itertools.count[int]) -> list[dict[str, Any]]:
    """All panels in rows, each with its number and its place."""
    found: list[dict[str, Any]] = []
    y = 0
    for title, collapsed, panels in ROWS:
        row: dict[str, Any] = {
            "type": "row",
            "id": next(numbers),
            "title": title,
            "collapsed": collapsed,
            "gridPos": {"x": 0, "y": y, "w": WIDTH, "h": 1},
            "panels": [],
        }
        found.append(row)
        y, x = y + 1, 0
        for each in panels:
            place = each["gridPos"]
            if x + place["w"] > WIDTH:
                x, y = 0, y + place["h"]
            made = {"id": next(numbers), **each, "gridPos": {"x": x, "y": y, **place}}
            (row["panels"] if collapsed else found).append(made)
            x += place["w"]
        y += 8
    return found


def dashboard() -> dict[str, Any]:
    """All of it."""
    return {
        "title": "Redis State Sync",
        "description": "Is anyone stale, is Redis slow, who writes? See docs/monitoring.md.",
        "tags": ["ray", "rllib", "redis"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {"list": VARIABLES},
        "panels": placed(itertools.count(1)),
    }


def text() -> str:
    """As it is in the file."""
    return json.dumps(dashboard(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    TARGET.write_text(text())
    sys.stdout.write(f"{TARGET.name}: {text().count('expr')} queries\n")
