"""The plots of docs/benchmarks.md."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

# Not pyplot: a Figure of its own needs no display.
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks import arms, costs, fanout, fetch, poll, publish
from benchmarks.measures import Measure
from benchmarks.results import Results

# File name -> titles and metrics of its panels.
PLOTS: dict[str, tuple[tuple[str, str], ...]] = {
    "bench-poll.png": (
        ("one poll that finds nothing new", poll.P50),
        ("polls per second of all pollers", poll.RATE),
    ),
    "bench-fetch.png": (("fetch", fetch.FETCH), ("fetch and apply", fetch.APPLY)),
    "bench-publish.png": (
        ("training thread held up by a publish", publish.HELD),
        ("publish until stored", publish.STORED),
    ),
    "bench-node.png": (
        ("publish until the last reader has applied", fanout.LAST_APPLIED),
        ("memory of readers that hold the state", costs.MEMORY),
    ),
}
_COLOURS = {
    arms.RAY: "#7f7f7f",
    arms.TCP: "#1f77b4",
    arms.UNIX: "#17becf",
    arms.TRACKING: "#2ca02c",
    arms.NODE: "#d62728",
    arms.CLIENT: "#ff7f0e",
    arms.RAW_TCP: "#c5b0d5",
    arms.RAW_UNIX: "#dbd4e8",
    arms.MEMCPY: "#e7e3c8",
}


def link(results: Results, name: str, folder: str = "images") -> str:
    """Markdown that shows one plot, if something of it was measured."""
    if not any(results.measures(metric) for _, metric in PLOTS[name]):
        return "_Not measured._"
    return f"![{'; '.join(title for title, _ in PLOTS[name])}]({folder}/{name})"


def save_all(results: Results, folder: Path) -> list[Path]:
    """Draws each plot of which something was measured."""
    folder.mkdir(parents=True, exist_ok=True)
    saved = []
    for name, panels in PLOTS.items():
        found = [(title, results.measures(metric)) for title, metric in panels]
        found = [(title, measures) for title, measures in found if measures]
        if found:
            _save(found, folder / name)
            saved.append(folder / name)
    return saved


def _save(panels: Sequence[tuple[str, Sequence[Measure]]], path: Path) -> None:
    figure = Figure(figsize=(6 * len(panels), 4.2), layout="constrained")
    for axes, (title, measures) in zip(
        figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True
    ):
        _bars(axes, measures)
        axes.set_title(title, fontsize=10)
    figure.savefig(path, dpi=110)


def _bars(axes: Axes, measures: Sequence[Measure]) -> None:
    """Bars of medians, with p10 to p90, on a logarithmic scale."""
    names = [arm for arm in _COLOURS if any(arm in m.values for m in measures)]
    width = 0.8 / len(names)
    for number, arm in enumerate(names):
        at, heights, below, above = [], [], [], []
        for position, measure in enumerate(measures):
            if arm not in measure.values:
                continue
            spread = measure.spread(arm)
            at.append(position + (number - (len(names) - 1) / 2) * width)
            heights.append(spread.median)
            below.append(spread.median - spread.low)
            above.append(spread.high - spread.median)
        axes.bar(
            at,
            heights,
            width,
            yerr=(below, above),
            color=_COLOURS[arm],
            label=arms.TITLES[arm].replace("`", ""),
            error_kw={"linewidth": 0.8},
        )
    axes.set_yscale("log")
    axes.set_ylabel(measures[0].unit)
    axes.set_xticks(
        range(len(measures)), [m.case.replace(", ", ",\n") for m in measures], fontsize=8
    )
    axes.grid(axis="y", alpha=0.3)
    axes.legend(fontsize=7, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.09))
