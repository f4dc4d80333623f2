"""How stale is what the learner trains on? Ray's push, Ray's state server, and ours.

    python -m benchmarks.staleness --write-docs

A run is made for each cell, arm and seed, and is a file of its own: called again, what is there is
not run again. Seed by seed, every arm has its turn. See docs/staleness.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks import grid, lag_cells
from benchmarks.lag_cells import Cell, Timing
from benchmarks.run_store import RunKey, RunStore, digest_of

FOLDER = Path("out/bench/staleness")
# What building and stopping an Algorithm may take beside, on a busy machine.
_SPARE_S = 240.0
console = Console()
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def staleness(
    cells: Annotated[
        str, typer.Option(help="As 100x4,20x8: steps and EnvRunners; l1: a learner actor; or all.")
    ] = ",".join(cell.name for cell in lag_cells.DEFAULT),
    arms: Annotated[str, typer.Option(help="Some of them.")] = ",".join(lag_cells.TITLES),
    seeds: Annotated[int, typer.Option(min=1, help="How many, from --first-seed on.")] = 5,
    first_seed: Annotated[int, typer.Option(min=0)] = 0,
    seconds: Annotated[
        float, typer.Option(min=1, help="What counts of a run, at least.")
    ] = Timing.seconds,
    out: Annotated[Path, typer.Option(help="Folder for the runs.")] = FOLDER,
    write_docs: Annotated[
        bool, typer.Option("--write-docs", help="Fill the results in docs/ in, and draw the plot.")
    ] = False,
    docs_only: Annotated[
        bool, typer.Option("--docs-only", help="Run nothing; as --write-docs.")
    ] = False,
) -> None:
    """Measures the staleness of training batches. Run it on an idle machine."""
    timing, store = Timing(seconds=seconds), RunStore(out)
    failed = False
    if not docs_only:
        from benchmarks.run_lab import make_missing

        plan = plan_of(_cells(cells), _arms(arms), range(first_seed, first_seed + seeds), timing)
        failed = bool(make_missing(plan, store, _maker(timing), _at_most_s(timing), console.print))
    if write_docs or docs_only:
        from benchmarks import lag_report

        for path in lag_report.write(store, timing):
            console.print(f"wrote {path}")
    if failed:
        raise typer.Exit(1)


def plan_of(
    cells: Sequence[Cell], arms: Sequence[str], seeds: Sequence[int], timing: Timing
) -> list[RunKey]:
    """All runs in order: by seed, then by cell; arms of one cell and seed next to each other."""
    return [
        key_of(cell, arm, seed, timing)
        for seed in seeds
        for cell in cells
        for arm in grid.rotated(arms, seed)
    ]


def key_of(cell: Cell, arm: str, seed: int, timing: Timing) -> RunKey:
    """Of a run."""
    return RunKey(cell.name, arm, seed, digest_of(lag_cells.plain_config(cell, arm, timing)))


def _maker(timing: Timing) -> Callable[[RunKey, str], dict[str, Any]]:
    def make(key: RunKey, url: str) -> dict[str, Any]:
        from benchmarks import lag_run

        run = lag_run.run(Cell.parse(key.cell), key.arm, key.seed, timing, url)
        console.print(
            f"[dim]lag {run['mean']:.2f} ({run['acting']:.2f} when acting), "
            f"{run['updates_per_s']:.1f} updates/s, {run['steps_per_s']:.0f} env steps/s, "
            f"{run['busy_cores']:.1f} cores busy, {run['wall_s']:.0f} s[/dim]"
        )
        return run

    return make


def _at_most_s(timing: Timing) -> Callable[[RunKey], float]:
    def at_most_s(key: RunKey) -> float:
        cell = Cell.parse(key.cell)
        return timing.before_s(cell) + timing.measured_s(cell) + _SPARE_S

    return at_most_s


def _cells(names: str) -> list[Cell]:
    if names == "all":
        return list(lag_cells.WHOLE)
    try:
        return [Cell.parse(name) for name in names.split(",")]
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _arms(names: str) -> list[str]:
    chosen = names.split(",")
    unknown = sorted(set(chosen) - set(lag_cells.TITLES))
    if unknown:
        raise typer.BadParameter(
            f"there is no arm {unknown[0]!r}, but {', '.join(lag_cells.TITLES)}"
        )
    return chosen


if __name__ == "__main__":
    app(prog_name="python -m benchmarks.staleness")
