"""Is learning hurt, or helped? Env steps and time to a return, for Ray's arms and ours.

    python -m benchmarks.curves --write-docs

A run is made for each case, arm and seed, and is a file of its own: called again, what is there is
not run again. Seed by seed, every arm has its turn. See docs/learning.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks import curve_tasks, grid
from benchmarks.curve_tasks import Case
from benchmarks.run_store import RunKey, RunStore, digest_of

FOLDER = Path("out/bench/curves")
_AT_MOST_S = 900.0
console = Console()
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def curves(
    cases: Annotated[str, typer.Option(help="Some of them.")] = ",".join(
        case.name for case in curve_tasks.CASES
    ),
    arms: Annotated[str, typer.Option(help="Some of them.")] = ",".join(curve_tasks.ARMS),
    seeds: Annotated[int, typer.Option(min=1, help="How many, from --first-seed on.")] = 3,
    first_seed: Annotated[int, typer.Option(min=0)] = 1,
    out: Annotated[Path, typer.Option(help="Folder for the runs.")] = FOLDER,
    write_docs: Annotated[
        bool, typer.Option("--write-docs", help="Fill the results in docs/ in, and draw the plot.")
    ] = False,
    docs_only: Annotated[
        bool, typer.Option("--docs-only", help="Run nothing; as --write-docs.")
    ] = False,
) -> None:
    """Measures env steps and time to a return. Run it on an idle machine."""
    store = RunStore(out)
    failed = False
    if not docs_only:
        plan = plan_of(_cases(cases), _arms(arms), range(first_seed, first_seed + seeds))
        from benchmarks.run_lab import make_missing

        failed = bool(make_missing(plan, store, _make, lambda _: _AT_MOST_S, console.print))
    if write_docs or docs_only:
        from benchmarks import curve_report

        for path in curve_report.write(store):
            console.print(f"wrote {path}")
    if failed:
        raise typer.Exit(1)


def plan_of(cases: Sequence[Case], arms: Sequence[str], seeds: Sequence[int]) -> list[RunKey]:
    """All runs in order: by seed, then by case; arms of one case and seed next to each other."""
    return [
        RunKey(case.name, arm, seed, digest_of(curve_tasks.plain_config(case, arm)))
        for seed in seeds
        for case in cases
        for arm in grid.rotated(arms, seed)
    ]


def _make(key: RunKey, url: str) -> dict[str, Any]:
    from benchmarks import curve_run

    run = curve_run.run(Case.parse(key.cell), key.arm, key.seed, url)
    console.print(
        f"[dim]{'reached' if run['reached'] else 'not reached'} after {run['steps']} steps, "
        f"{run['seconds']:.0f} s; lag {run['lag']:.2f}; {run['wall_s']:.0f} s in all[/dim]"
    )
    return run


def _cases(names: str) -> list[Case]:
    try:
        return [Case.parse(name) for name in names.split(",")]
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _arms(names: str) -> list[str]:
    chosen = names.split(",")
    unknown = sorted(set(chosen) - set(curve_tasks.ARMS))
    if unknown:
        raise typer.BadParameter(
            f"there is no arm {unknown[0]!r}, but {', '.join(curve_tasks.ARMS)}"
        )
    return chosen


if __name__ == "__main__":
    app(prog_name="python -m benchmarks.curves")
