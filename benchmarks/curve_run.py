"""One run of the learning curves: trains until the return is reached, or steps are used up."""

from __future__ import annotations

import math
import statistics
import time
import uuid
from collections.abc import Sequence
from typing import Any

from benchmarks import curve_tasks, lag_tap, machine
from benchmarks.curve_tasks import TASKS, Case
from benchmarks.lag_run import remove_logdir

Curve = Sequence[tuple[int, float, float]]


def run(case: Case, arm: str, seed: int, url: str) -> dict[str, Any]:
    """Returns what was measured, as plain values."""
    task = TASKS[case.task]
    started = time.monotonic()
    namespace = f"bench/{case.name}/{arm}/{seed}/{uuid.uuid4().hex[:8]}"
    algorithm = curve_tasks.make_config(case, arm, seed, url, namespace).build_algo()
    try:
        algorithm.learner_group.foreach_learner(lag_tap.install, timed=False)
        begin = time.monotonic()
        curve: list[tuple[int, float, float]] = []
        while not ended(curve, task.threshold, task.max_steps):
            runners = algorithm.train()["env_runners"]
            steps = int(runners.get("num_env_steps_sampled_lifetime", 0))
            mean = float(runners.get("episode_return_mean", math.nan))
            if mean == mean:  # NaN if no episode ended.
                curve.append((steps, round(time.monotonic() - begin, 3), mean))
        (rows,) = [r.get() for r in algorithm.learner_group.foreach_learner(lag_tap.read)]
    finally:
        algorithm.stop()
        remove_logdir(algorithm)
    steps, seconds, mean = curve[-1]
    return {
        "reached": mean >= task.threshold,
        "steps": steps,
        "seconds": seconds,
        "lag": statistics.fmean(row["mean"] for row in rows),
        "updates": len(rows),
        "wall_s": time.monotonic() - started,
        "facts": machine.facts(),
        "source": machine.source(),
        "curve": curve,
    }


def ended(curve: Curve, threshold: float, max_steps: int) -> bool:
    """Whether a run is over: the return was reached, or the steps are used up."""
    return bool(curve) and (curve[-1][2] >= threshold or curve[-1][0] >= max_steps)
