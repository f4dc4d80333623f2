"""Tables and plot of docs/learning.md, from the runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks import curve_tasks, filling, intervals
from benchmarks.curve_tasks import ARMS, CASES, TASKS, Case
from benchmarks.intervals import Interval
from benchmarks.lag_cells import PREFETCH, PULL, PUSH, SAMPLE
from benchmarks.lag_report import change
from benchmarks.measures import short
from benchmarks.run_store import RunStore, digest_of

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("docs/learning.md",)
PLOT = "bench-curves.png"
_COLOURS = {PUSH: "#7f7f7f", PULL: "#1f77b4", SAMPLE: "#17becf", PREFETCH: "#d62728"}
_EMPTY = "_Not measured._"

Run = Mapping[str, Any]


@dataclass(frozen=True)
class Needed:
    """What it took to reach a return, over seeds.

    Args:
        interval: Of the mean; of runs that ended without reaching it, what they were given counts,
            so that the mean is too small.
        censored: How many did not reach it.
    """

    interval: Interval
    censored: int

    def __str__(self) -> str:
        text = short(self.interval.mean)
        if self.censored:
            return f"more than {text} ({self.censored} of {self.interval.n} did not reach it)"
        if math.isnan(self.interval.low):
            return text
        return f"{text} ± {short(self.interval.high - self.interval.mean)}"


def needed(runs: Sequence[Run], name: str) -> Needed:
    """Of at least one run.

    Args:
        runs: Of one case and arm.
        name: `steps` or `seconds`.
    """
    censored = sum(not run["reached"] for run in runs)
    return Needed(intervals.of_mean([float(run[name]) for run in runs]), censored)


def ratio(ours: Sequence[Run], theirs: Sequence[Run], name: str) -> Interval | None:
    """Of runs of the same seed, both of which reached the return; None if there are none."""
    known = {run["seed"]: float(run[name]) for run in theirs if run["reached"]}
    pairs = [
        (float(r[name]), known[r["seed"]]) for r in ours if r["reached"] and r["seed"] in known
    ]
    if not pairs:
        return None
    return intervals.of_ratio([a for a, _ in pairs], [b for _, b in pairs])


class CurveResults:
    """Runs of the cases as they are now, by case and arm.

    Args:
        runs: As `RunStore.runs`; those of another config are left out.
        failures: As `RunStore.failures`.
    """

    def __init__(self, runs: Sequence[Run], failures: Sequence[Run] = ()) -> None:
        self.failures = list(failures)
        self.by_arm: dict[tuple[Case, str], list[Run]] = {}
        for run in runs:
            for case in CASES:
                digest = digest_of(curve_tasks.plain_config(case, run["arm"]))
                if (run["cell"], run["digest"]) == (case.name, digest):
                    self.by_arm.setdefault((case, run["arm"]), []).append(run)

    @property
    def runs(self) -> list[Run]:
        """All of them."""
        return [run for runs in self.by_arm.values() for run in runs]


def table(results: CurveResults) -> str:
    """Env steps and time to the return, beside Ray's arms."""
    rows = [
        "| task | return | arm | env steps | against push | against Ray's server | seconds "
        "| staleness, updates | runs |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for case in CASES:
        for arm, title in ARMS.items():
            runs = results.by_arm.get((case, arm))
            if not runs:
                continue
            against = [
                "" if arm == other else _change(runs, results.by_arm.get((case, other), []))
                for other in (PUSH, PULL)
            ]
            lag = intervals.of_mean([run["lag"] for run in runs])
            rows.append(
                f"| {case.title} | {TASKS[case.task].threshold:g} | {title} "
                f"| {needed(runs, 'steps')} | {against[0]} | {against[1]} "
                f"| {needed(runs, 'seconds')} | {short(lag.mean)} | {len(runs)} |"
            )
    return "\n".join(rows) if len(rows) > 2 else _EMPTY


def facts(results: CurveResults) -> str:
    """The machine, and what failed."""
    if not results.runs:
        return _EMPTY
    machines = dict.fromkeys(
        ", ".join(f"{k} {v}" for k, v in run["facts"].items() if k != "boot")
        for run in results.runs
    )
    lines = [f"Machine: {machine}." for machine in machines]
    walls = [float(run["wall_s"]) for run in results.runs]
    sources = sorted({str(run["source"]) for run in results.runs})
    lines.append(
        f"{len(results.runs)} runs of {min(walls):.0f} to {max(walls):.0f} s, of "
        f"{len(sources)} state(s) of the package's code ({', '.join(sources)})."
    )
    if results.failures:
        failed = "; ".join(
            f"{f['cell']}, {f['arm']}, seed {f['seed']}: {f['error'].strip().splitlines()[-1]}"
            for f in results.failures
        )
        lines.append(f"Attempts that failed, and were made again: {failed}.")
    return "\n\n".join(lines)


def plot_link(results: CurveResults) -> str:
    """Markdown that shows the plot."""
    return f"![returns by env steps, each run](images/{PLOT})" if results.runs else _EMPTY


# What stands between `<!-- bench:NAME -->` and `<!-- /bench -->`.
BLOCKS: Mapping[str, Callable[[CurveResults], str]] = {
    "curves": table,
    "curves-plot": plot_link,
    "curves-facts": facts,
}


def write(store: RunStore, root: Path = ROOT) -> list[Path]:
    """Fills the page in and draws the plot; returns what was written."""
    results = CurveResults(store.runs(), store.failures())
    made = {name: block(results) for name, block in BLOCKS.items()}
    written = filling.fill_pages(root, PAGES, made)
    if results.runs:
        path = root / "docs" / "images" / PLOT
        path.parent.mkdir(parents=True, exist_ok=True)
        save_plot(results, path)
        written.append(path)
    return written


def save_plot(results: CurveResults, path: Path) -> None:
    """A panel for each case, a line for each run."""
    cases = [case for case in CASES if any((case, arm) in results.by_arm for arm in ARMS)]
    figure = Figure(figsize=(4.2 * len(cases), 3.6), layout="constrained")
    for axes, case in zip(figure.subplots(1, len(cases), squeeze=False)[0], cases, strict=True):
        for arm, title in ARMS.items():
            for number, run in enumerate(results.by_arm.get((case, arm), [])):
                steps, _, means = zip(*run["curve"], strict=True)
                label = title.replace("`", "") if number == 0 else None
                axes.plot(steps, means, color=_COLOURS[arm], linewidth=0.9, label=label)
        axes.axhline(TASKS[case.task].threshold, color="black", linewidth=0.6, linestyle=":")
        axes.set_title(case.title, fontsize=9)
        axes.set_xlabel("env steps", fontsize=8)
        axes.set_ylabel(f"mean return of {curve_tasks.EPISODES} episodes", fontsize=8)
        axes.tick_params(labelsize=7)
        axes.legend(fontsize=6)
    figure.savefig(path, dpi=110)


def _change(ours: Sequence[Run], theirs: Sequence[Run]) -> str:
    paired = ratio(ours, theirs, "steps")
    return "–" if paired is None else change(paired)
