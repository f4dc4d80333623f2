"""One run of the staleness benchmark: an Algorithm is built, warmed up, measured and stopped."""

from __future__ import annotations

import statistics
import time
import uuid
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import lag_tap, machine
from benchmarks.lag_cells import Cell, Timing, make_config

Rows = Sequence[dict[str, float]]
MEANS = ("mean", "p50", "p90", "max", "spread", "acting", "waiting", "seconds", "own_ms")


class TooFewUpdatesError(Exception):
    """A run that was too short, or hung."""


def run(cell: Cell, arm: str, seed: int, timing: Timing, url: str) -> dict[str, Any]:
    """Returns what was measured, as plain values.

    Raises:
        TooFewUpdatesError: If an EnvRunner's share is missing, or nothing was trained.
    """
    _check_names()
    started = time.monotonic()
    # A name of its own: nothing of another run is there.
    namespace = f"bench/{cell.name}/{arm}/{seed}/{uuid.uuid4().hex[:8]}"
    algorithm = make_config(cell, arm, seed, url, namespace).build_algo()
    try:
        algorithm.learner_group.foreach_learner(lag_tap.install)
        built = time.monotonic()
        _train_until(algorithm, _first_update(algorithm, built) + timing.before_s(cell))
        busy, begin = machine.busy_seconds(), time.monotonic()
        _train_until(algorithm, begin + timing.measured_s(cell))
        end = time.monotonic()
        busy = machine.busy_seconds() - busy
        (rows,) = [r.get() for r in algorithm.learner_group.foreach_learner(lag_tap.read)]
    finally:
        algorithm.stop()
        remove_logdir(algorithm)
    counted = [row for row in rows if begin <= row["at"] < end]
    if {row["runner"] for row in counted} != set(range(1, cell.runners + 1)):
        raise TooFewUpdatesError(f"{len(counted)} batches, not of every EnvRunner")
    return {
        **summary(counted, end - begin),
        "busy_cores": busy / (end - begin),
        "built_s": built - started,
        "measured_s": end - begin,
        "wall_s": time.monotonic() - started,
        "load": machine.load(),
        "facts": machine.facts(),
        "source": machine.source(),
        "rows": [{k: round(v, 4) for k, v in row.items()} for row in counted],
    }


def summary(rows: Rows, seconds: float) -> dict[str, float]:
    """One number of each kind for a run: means over its batches."""
    return {
        "batches": len(rows),
        **{name: statistics.fmean(row[name] for row in rows) for name in MEANS},
        "updates_per_s": len(rows) / seconds,
        "steps_per_s": steps_per_s(rows),
    }


def steps_per_s(rows: Rows) -> float:
    """Env steps per second of all EnvRunners, each from a fragment's begin to another's.

    Not a count in a window: whole fragments arrive, and one more or less is a per cent.
    """
    fragments: dict[float, list[dict[str, float]]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row["begun"]):
        fragments[row["runner"]].append(row)
    rate = 0.0
    for own in fragments.values():
        if len(own) < 2:
            raise TooFewUpdatesError("an EnvRunner has fewer than two fragments: measure longer")
        steps = sum(row["steps"] for row in own[:-1])
        rate += steps / (own[-1]["begun"] - own[0]["begun"])
    return rate


def _train_until(algorithm: Any, deadline: float) -> None:
    while time.monotonic() < deadline:
        algorithm.train()


def _first_update(algorithm: Any, built: float) -> float:
    """When the first batch was trained on: EnvRunners begin late, and Ray takes its time."""
    while time.monotonic() < built + 120:
        algorithm.train()
        (rows,) = [r.get() for r in algorithm.learner_group.foreach_learner(lag_tap.read)]
        if rows:
            return float(rows[0]["at"])
    raise TooFewUpdatesError("nothing was trained on within 120 s")


def _check_names() -> None:
    from ray.rllib import core
    from ray.rllib.core.columns import Columns
    from ray.rllib.utils import metrics

    assert lag_tap.SEQ_NO == metrics.WEIGHTS_SEQ_NO
    assert (lag_tap.OBS, lag_tap.LOSS_MASK) == (Columns.OBS, Columns.LOSS_MASK)
    assert lag_tap.MODULE_ID == core.DEFAULT_MODULE_ID


def remove_logdir(algorithm: Any) -> None:
    """RLlib makes one for each Algorithm."""
    for path in Path(algorithm.logdir).glob("*"):
        path.unlink()
    Path(algorithm.logdir).rmdir()
