"""The staleness benchmark in short: one small cell, Ray's state server and ours."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")

from benchmarks import lag_run, staleness
from benchmarks.lag_cells import PULL, SAMPLE, Cell, Timing
from benchmarks.run_lab import make_missing
from benchmarks.run_store import RunKey, RunStore

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]

SHORT = Timing(seconds=2.0, warm_up_s=0.5, fragments=4, warm_up_fragments=1)
CELL = Cell(20, 2)


def test_a_small_cell(tmp_path: Path) -> None:
    """Each arm's batches are stamped, of every EnvRunner, and no fresher than can be."""
    store, said = RunStore(tmp_path), []

    def make(which: RunKey, url: str) -> dict[str, Any]:
        return lag_run.run(Cell.parse(which.cell), which.arm, which.seed, SHORT, url)

    plan = staleness.plan_of([CELL], [PULL, SAMPLE], [0], SHORT)
    assert make_missing(plan, store, make, lambda _: 120.0, said.append) == [], said
    runs = {run["arm"]: run for run in store.runs()}
    assert sorted(runs) == [PULL, SAMPLE]
    for run in runs.values():
        assert all(math.isfinite(run[name]) for name in lag_run.MEANS)
        # An update counts itself, and no fragment is older than the run.
        assert 1 <= run["mean"] <= 30
        assert run["mean"] == pytest.approx(run["acting"] + run["waiting"], abs=1e-6)
        assert run["spread"] == 0  # Weights change at `sample()` only.
        assert run["max"] < run["rows"][-1]["update"]  # Not the first weights all the time.
        assert {row["runner"] for row in run["rows"]} == {1, 2}
        assert run["updates_per_s"] * CELL.fragment == pytest.approx(run["steps_per_s"], rel=0.5)
        assert run["facts"]["ray"]
    # Finished, so that nothing is started.
    assert make_missing(plan, store, make, lambda _: 0.0, said.append) == []
    assert "2 of them are there" in said[-1]
    assert store.load(replace(plan[0], seed=1)) is None
