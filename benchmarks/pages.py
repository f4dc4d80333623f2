"""Fills the pages' tables in from results: between markers, and never by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks import (
    costs,
    fanout,
    fetch,
    filling,
    plots,
    poll,
    publish,
    scale,
    scaling,
    tables,
    targets,
)
from benchmarks.results import Results

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "docs/benchmarks.md", "docs/scaling.md")


def _metric(metric: str) -> Callable[[Results], str]:
    return lambda results: tables.table(results.measures(metric))


def _plot(name: str) -> Callable[[Results], str]:
    return lambda results: plots.link(results, f"bench-{name}.png")


# What stands between `<!-- bench:NAME -->` and `<!-- /bench -->`.
BLOCKS: Mapping[str, Callable[[Results], str]] = {
    "summary": targets.summary,
    "plot-readme": lambda results: plots.link(results, "bench-node.png", "docs/images"),
    "facts": tables.facts,
    "targets": targets.table,
    "plot-poll": _plot("poll"),
    "poll-p50": _metric(poll.P50),
    "poll-p99": _metric(poll.P99),
    "poll-rate": _metric(poll.RATE),
    "poll-capacity": _metric(poll.CAPACITY),
    "plot-fetch": _plot("fetch"),
    "fetch": _metric(fetch.FETCH),
    "apply": _metric(fetch.APPLY),
    "use": _metric(fetch.USE),
    "plot-publish": _plot("publish"),
    "publish-held": _metric(publish.HELD),
    "publish-stored": _metric(publish.STORED),
    "publish-steps": _metric(publish.STEPS),
    "plot-node": _plot("node"),
    "fanout": _metric(fanout.LAST_APPLIED),
    "fanout-used": _metric(fanout.LAST_USED),
    "poll-cpu": _metric(costs.POLL_CPU),
    "poll-bytes": _metric(costs.POLL_BYTES),
    "publish-cpu": _metric(costs.PUBLISH_CPU),
    "fetch-cpu": _metric(costs.FETCH_CPU),
    "fetch-bytes": _metric(costs.FETCH_BYTES),
    "memory": _metric(costs.MEMORY),
    "node-memory": _metric(costs.NODE_MEMORY),
    "scale": scale.table,
    "scaling-costs": scaling.costs_table,
    "scaling-table": scaling.capacity_table,
}


def fill(text: str, results: Results) -> str:
    """A page with all of these blocks made anew; those of other benchmarks stay as they are."""
    return filling.fill(text, {name: block(results) for name, block in BLOCKS.items()})


def write(results: Results, root: Path = ROOT) -> list[Path]:
    """Fills in all pages and draws the plots; returns what was written."""
    made = {name: block(results) for name, block in BLOCKS.items()}
    return filling.fill_pages(root, PAGES, made) + plots.save_all(results, root / "docs" / "images")
