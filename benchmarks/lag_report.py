"""Tables and plot of docs/staleness.md and of README, from the runs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

# Not pyplot: a Figure of its own needs no display.
from matplotlib.figure import Figure

from benchmarks import filling, lag_cells, lag_results
from benchmarks.intervals import Interval
from benchmarks.lag_cells import FLIGHT, PREFETCH, PULL, PUSH, SAMPLE, TITLES, Cell, Timing
from benchmarks.lag_results import LagResults, Run, Value, of
from benchmarks.measures import short
from benchmarks.run_store import RunStore

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "docs/staleness.md")
PLOT = "bench-staleness.png"
LAG = "mean"
_OURS = (SAMPLE, FLIGHT, PREFETCH)
_COLOURS = {
    PUSH: "#7f7f7f",
    PULL: "#1f77b4",
    SAMPLE: "#9edae5",
    FLIGHT: "#2ca02c",
    PREFETCH: "#d62728",
}
_EMPTY = "_Not measured._"
# Of each arm, to be called complete.
_RUNS = 5


@dataclass(frozen=True)
class Target:
    """What the project sets out to reach.

    Args:
        what: In words.
        arms: Which are to reach it.
        baseline: What they are compared with.
        lower: By which share of the baseline they are to be lower, at least.
    """

    what: str
    arms: tuple[str, ...]
    baseline: str
    lower: float


TARGETS = (
    Target("lag against push, at `sample()`", (SAMPLE,), PUSH, 0.35),
    Target("lag against push, in flight", (FLIGHT, PREFETCH), PUSH, 0.60),
    Target("lag against Ray's state server, at `sample()`", (SAMPLE,), PULL, 0.0),
    Target("lag against Ray's state server, in flight", (FLIGHT, PREFETCH), PULL, 0.35),
)
RATE_WITHIN = 0.02


def lag_table(results: LagResults) -> str:
    """Staleness of each cell and arm, beside push and Ray's server, and what it is made of."""
    rows = [
        "| cell | arm | staleness, updates | against push | against Ray's server "
        "| of it: when acting | waiting | runs |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for cell in results.cells:
        for arm in results.arms(cell):
            rows.append(
                f"| {cell.title} | {TITLES[arm]} | {_mean(results, cell, arm, of(LAG))} "
                f"| {_change(results, cell, arm, PUSH, of(LAG))} "
                f"| {_change(results, cell, arm, PULL, of(LAG))} "
                f"| {_mean(results, cell, arm, of('acting'))} "
                f"| {_mean(results, cell, arm, of('waiting'))} "
                f"| {len(results.seeds(cell, arm))} |"
            )
    return "\n".join(rows) if len(rows) > 2 else _EMPTY


def spread_table(results: LagResults) -> str:
    """How staleness is spread within a batch, and the same in seconds."""
    rows = [
        "| cell | arm | p50 | p90 | max | max - min | age of the weights, s |",
        "|---|---|---|---|---|---|---|",
    ]
    for cell in results.cells:
        for arm in results.arms(cell):
            names = ("p50", "p90", "max", "spread", "seconds")
            cells = " | ".join(_mean(results, cell, arm, of(name)) for name in names)
            rows.append(f"| {cell.title} | {TITLES[arm]} | {cells} |")
    return "\n".join(rows) if len(rows) > 2 else _EMPTY


def rate_table(results: LagResults) -> str:
    """What was equal in all arms, and what an arm costs an EnvRunner."""
    rows = [
        "| cell | arm | updates/s | env steps/s | EnvRunner's own ms per env step "
        "| env steps/s without the schedule | against Ray's server | cores busy |",
        "|---|---|---|---|---|---|---|---|",
    ]
    free = lag_results.unscheduled_steps_per_s
    for cell in results.cells:
        for arm in results.arms(cell):
            values = (of("updates_per_s"), of("steps_per_s"), of("own_ms"), free)
            cells = " | ".join(_mean(results, cell, arm, value) for value in values)
            rows.append(
                f"| {cell.title} | {TITLES[arm]} | {cells} "
                f"| {_change(results, cell, arm, PULL, free)} "
                f"| {_mean(results, cell, arm, of('busy_cores'))} |"
            )
    return "\n".join(rows) if len(rows) > 2 else _EMPTY


def target_table(results: LagResults) -> str:
    """Each target, cell by cell: what was measured, and whether it was met."""
    rows = ["| what | cell | arm | target | measured | met |", "|---|---|---|---|---|---|"]
    for target in TARGETS:
        for cell in results.cells:
            for arm in target.arms:
                ratio = results.ratio(cell, arm, target.baseline, of(LAG))
                if ratio is not None:
                    wanted = f"{-100 * target.lower:.0f} %" if target.lower else "not higher"
                    rows.append(
                        f"| {target.what} | {cell.title} | {TITLES[arm]} | {wanted} "
                        f"| {change(ratio)} | {verdict(ratio, 1 - target.lower)} |"
                    )
    rates = (
        ("env steps/s", of("steps_per_s")),
        ("env steps/s without the schedule", lag_results.unscheduled_steps_per_s),
    )
    for (what, rate), cell, arm in itertools.product(rates, results.cells, _OURS):
        ratio = results.ratio(cell, arm, PULL, rate)
        if ratio is not None:
            rows.append(
                f"| {what} | {cell.title} | {TITLES[arm]} "
                f"| within {100 * RATE_WITHIN:.0f} % | {change(ratio)} "
                f"| {verdict(_inverse(ratio), 1 / (1 - RATE_WITHIN))} |"
            )
    return "\n".join(rows) if len(rows) > 2 else _EMPTY


def summary_table(results: LagResults) -> str:
    """For the README: staleness, cells down and arms across."""
    cells = [cell for cell in results.cells if cell in lag_cells.DEFAULT]
    arms = [arm for arm in TITLES if any(arm in results.arms(cell) for cell in cells)]
    if not arms:
        return _EMPTY
    rows = [
        "| staleness, gradient updates | " + " | ".join(TITLES[arm] for arm in arms) + " |",
        "|---" * (len(arms) + 1) + "|",
    ]
    for cell in cells:
        shown = []
        for arm in arms:
            text = "–"
            if arm in results.arms(cell):
                text = short(results.mean(cell, arm, of(LAG)).mean)
                if arm in _OURS and PUSH in results.arms(cell):
                    text += f" ({_change(results, cell, arm, PUSH, of(LAG), ends=False)})"
            shown.append(text)
        rows.append(f"| {cell.title} | " + " | ".join(shown) + " |")
    rows += ["", "In brackets: against push."]
    return "\n".join(rows)


def facts(results: LagResults) -> str:
    """The machine, the runs, those that failed, and the cells that were not run."""
    if not results.runs:
        return _EMPTY
    lines = []
    for machine in dict.fromkeys(_machine(run) for run in results.runs):
        lines.append(f"Machine: {machine}.")
    boots = {run["facts"]["boot"] for run in results.runs}
    sources = sorted({str(run["source"]) for run in results.runs})
    timing = results.timing
    lines.append(
        f"{len(results.runs)} runs, of {len(boots)} boot(s) of the machine and "
        f"{len(sources)} state(s) of the package's code ({', '.join(sources)}); what counts of "
        f"each is at least {timing.seconds:g} s and {timing.fragments:g} fragments of each "
        f"EnvRunner, after at least {timing.warm_up_s:g} s and {timing.warm_up_fragments:g} "
        "fragments."
    )
    walls = [float(run["wall_s"]) for run in results.runs]
    batches = [int(run["batches"]) for run in results.runs]
    lines.append(
        f"A run took {min(walls):.0f} to {max(walls):.0f} s in all, and has {min(batches)} to "
        f"{max(batches)} batches."
    )
    missing = [cell.title for cell in lag_cells.WHOLE if cell not in results.cells]
    lines.append("Cells that were not run: " + ("; ".join(missing) if missing else "none") + ".")
    fewest = {cell: min(len(results.seeds(cell, arm)) for arm in TITLES) for cell in results.cells}
    few = [f"{cell.title} ({n} of some arm)" for cell, n in fewest.items() if n < _RUNS]
    if few:
        lines.append(f"With fewer than {_RUNS} runs: " + "; ".join(few) + ".")
    if results.failures:
        failed = "; ".join(
            f"{f['cell']}, {f['arm']}, seed {f['seed']}: {f['error'].strip().splitlines()[-1]}"
            for f in results.failures
        )
        lines.append(f"Attempts that failed, and were made again: {failed}.")
    if results.others:
        lines.append(f"{results.others} runs of other configs lie beside, and are left out.")
    return "\n\n".join(lines)


def plot_link(folder: str) -> Callable[[LagResults], str]:
    """Markdown that shows the plot."""

    def link(results: LagResults) -> str:
        if not results.runs:
            return _EMPTY
        return f"![staleness of training batches, by arm]({folder}/{PLOT})"

    return link


# What stands between `<!-- bench:NAME -->` and `<!-- /bench -->`.
BLOCKS: Mapping[str, Callable[[LagResults], str]] = {
    "staleness-summary": summary_table,
    "staleness-plot-readme": plot_link("docs/images"),
    "staleness-plot": plot_link("images"),
    "staleness-lag": lag_table,
    "staleness-spread": spread_table,
    "staleness-rates": rate_table,
    "staleness-targets": target_table,
    "staleness-facts": facts,
}


def write(store: RunStore, timing: Timing, root: Path = ROOT) -> list[Path]:
    """Fills the pages in and draws the plot; returns what was written."""
    results = LagResults.load(store, timing)
    made = {name: block(results) for name, block in BLOCKS.items()}
    written = filling.fill_pages(root, PAGES, made)
    if results.runs:
        path = root / "docs" / "images" / PLOT
        path.parent.mkdir(parents=True, exist_ok=True)
        save_plot(results, path)
        written.append(path)
    return written


def save_plot(results: LagResults, path: Path) -> None:
    """Bars of mean staleness; pale: what steps wait for, the same in all arms."""
    cells = results.cells
    arms = [arm for arm in TITLES if any(arm in results.arms(cell) for cell in cells)]
    figure = Figure(figsize=(1.9 * len(cells) + 2.5, 4.2), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / len(arms)
    for number, arm in enumerate(arms):
        there = [i for i, cell in enumerate(cells) if arm in results.arms(cell)]
        at = [i + (number - (len(arms) - 1) / 2) * width for i in there]
        lags = [results.mean(cells[i], arm, of(LAG)) for i in there]
        waiting = [results.mean(cells[i], arm, of("waiting")).mean for i in there]
        half = [0.0 if math.isnan(lag.high) else lag.high - lag.mean for lag in lags]
        colour = _COLOURS[arm]
        axes.bar(at, waiting, width, color=colour, alpha=0.4)
        axes.bar(
            at,
            [lag.mean - low for lag, low in zip(lags, waiting, strict=True)],
            width,
            bottom=waiting,
            yerr=half,
            color=colour,
            label=TITLES[arm].replace("`", ""),
            error_kw={"linewidth": 0.9, "capsize": 2},
        )
    axes.set_ylabel("staleness, gradient updates")
    axes.set_title("mean over runs with 95 % intervals; pale: updates while a step waits", size=9)
    titles = [cell.title.replace(", ", ",\n") for cell in cells]
    axes.set_xticks(range(len(cells)), titles, fontsize=8)
    axes.grid(axis="y", alpha=0.3)
    axes.legend(fontsize=7, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.17))
    figure.savefig(path, dpi=110)


def change(ratio: Interval, ends: bool = True) -> str:
    """A ratio as a change in per cent, with the ends of its interval."""
    mean, low, high = (100 * (x - 1) for x in (ratio.mean, ratio.low, ratio.high))
    if math.isnan(low) or not ends:
        return f"{mean:+.0f} %"
    return f"{mean:+.1f} % ({low:+.1f} to {high:+.1f})"


def verdict(ratio: Interval, limit: float) -> str:
    """Whether a ratio is at most the limit; "open" where the interval has both sides of it."""
    met = ratio.mean <= limit
    if math.isnan(ratio.low):
        return "yes, one run" if met else "no, one run"
    if ratio.low <= limit < ratio.high:
        return "yes, not certain" if met else "no, not certain"
    return "yes" if met else "no"


def _machine(run: Run) -> str:
    return ", ".join(f"{key} {value}" for key, value in run["facts"].items() if key != "boot")


def _inverse(ratio: Interval) -> Interval:
    return Interval(1 / ratio.mean, 1 / ratio.high, 1 / ratio.low, ratio.n)


def _mean(results: LagResults, cell: Cell, arm: str, value: Value) -> str:
    interval = results.mean(cell, arm, value)
    if math.isnan(interval.low):
        return short(interval.mean)
    return f"{short(interval.mean)} ± {short(interval.high - interval.mean)}"


def _change(
    results: LagResults, cell: Cell, arm: str, baseline: str, value: Value, ends: bool = True
) -> str:
    ratio = None if arm == baseline else results.ratio(cell, arm, baseline, value)
    return "" if ratio is None else change(ratio, ends)
