"""The plot that a run leaves behind."""

from __future__ import annotations

from pathlib import Path

# Not pyplot: a Figure of its own needs no display.
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from redis_state_sync.demo.options import Options
from redis_state_sync.demo.timeline import Outage, Timeline

_BLUE, _ORANGE, _RED, _GREEN = "#1f77b4", "#ff7f0e", "#d62728", "#2ca02c"


def save_plot(timeline: Timeline, options: Options, path: Path) -> None:
    """Draws mean return and version lag over time, the outage marked."""
    figure = Figure(figsize=(9, 6), layout="constrained")
    returns, lags = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    seen = [(s.t, s.mean_return) for s in timeline.samples if s.mean_return is not None]
    if seen:
        returns.plot(*zip(*seen, strict=True), color=_BLUE, label="mean return")
    if options.target is not None:
        returns.axhline(options.target, color=_GREEN, linestyle=":", label="target")
    returns.set_ylabel("mean return")
    returns.set_ylim(bottom=0)
    times = [s.t for s in timeline.samples]
    lags.step(times, [s.lag for s in timeline.samples], where="post", color=_ORANGE)
    lags.set_ylabel("versions behind the learner\n(slowest reader)")
    lags.set_ylim(bottom=0)
    lags.set_xlabel("seconds of training")
    for axes in (returns, lags):
        axes.grid(alpha=0.3)
        if timeline.outage is not None:
            _mark(axes, timeline.outage, times[-1] if times else 0.0)
    returns.legend(loc="upper left")
    figure.suptitle(f"redis-state-sync: {options.title}")
    figure.savefig(path, dpi=120)


def _mark(axes: Axes, outage: Outage, end: float) -> None:
    until = end if outage.up_at is None else outage.up_at
    axes.axvspan(outage.down_at, until, color=_RED, alpha=0.15, label="server killed")
    if outage.recovered_at is not None:
        axes.axvline(
            outage.recovered_at, color=_RED, linestyle="--", linewidth=1, label="readers up to date"
        )
