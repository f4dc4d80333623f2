"""The benchmarks' command line."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks import machine
from benchmarks.measures import Measure
from benchmarks.options import QUICK, Options
from benchmarks.states import MB

SECTIONS = ("poll", "fetch", "publish", "fanout", "costs", "scale")
console = Console()
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def bench(
    sections: Annotated[
        list[str] | None, typer.Argument(help=f"Some of {', '.join(SECTIONS)} [all].")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each arm.")] = Options.rounds,
    seconds: Annotated[
        float, typer.Option(min=0.01, help="Seconds of a closed loop of polls.")
    ] = Options.seconds,
    largest: Annotated[
        int, typer.Option(min=1, help="Largest state in MB; 512 adds a case to `fetch`.")
    ] = 128,
    quick: Annotated[
        bool, typer.Option("--quick", help="Few rounds of small cases: does it run?")
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("out/bench"),
    write_docs: Annotated[
        bool, typer.Option("--write-docs", help="Fill the results in docs/ in, and draw the plots.")
    ] = False,
    docs_only: Annotated[
        bool, typer.Option("--docs-only", help="Run nothing; as --write-docs.")
    ] = False,
) -> None:
    """Measures redis-state-sync beside Ray's state server and raw limits, in turn.

    Run it on an idle machine. Results of several calls are put together by --write-docs if they are
    of one boot of one machine.
    """
    chosen = list(sections or SECTIONS)
    unknown = sorted(set(chosen) - set(SECTIONS))
    if unknown:
        raise typer.BadParameter(f"there is no section {unknown[0]!r}, but {', '.join(SECTIONS)}")
    options = QUICK if quick else _limited(Options(rounds=rounds, seconds=seconds), largest * MB)
    if not docs_only:
        for name in chosen:
            _run(name, options, out)
    if write_docs or docs_only:
        from benchmarks import pages
        from benchmarks.results import Results

        for path in pages.write(Results.load(out)):
            console.print(f"wrote {path}")


def _limited(options: Options, largest: int) -> Options:
    sizes = {*options.sizes, largest}
    return dataclasses.replace(
        options,
        sizes=tuple(sorted(size for size in sizes if size <= largest)),
        published=tuple(size for size in options.published if size <= largest),
        fanned_out=tuple(size for size in options.fanned_out if size <= largest),
    )


def _run(name: str, options: Options, out: Path) -> None:
    """One section with servers of its own: nothing of the one before is left in them."""
    from benchmarks import run_section

    said = ""

    def watch(what: str, done: int, of: int) -> None:
        # No spinner: the thread that turns it would take its share of what is measured.
        nonlocal said
        if what != said:
            console.print(f"[dim]{what}, {of} rounds[/dim]")
            said = what

    started = time.monotonic()
    section = run_section.run(name, options, watch)
    path = section.save(out)
    for measure in section.measures:
        console.print(_table(measure))
    for note in section.notes:
        console.print(note)
    console.print(f"{name}: {time.monotonic() - started:.0f} s, load {machine.load()[0]}, {path}\n")


def _table(measure: Measure) -> Table:
    from benchmarks.arms import RAY

    table = Table(title=f"{measure.metric}, {measure.case}", title_justify="left")
    for column in ("arm", measure.unit, "times better than Ray's"):
        table.add_column(column, justify="left" if column == "arm" else "right")
    rows: list[tuple[str, Any, str]] = []
    for arm, values in measure.values.items():
        compared = arm != RAY and RAY in measure.values and 0 not in values
        ratio = str(measure.ratio(arm, RAY)) if compared else ""
        rows.append((arm, measure.spread(arm), ratio))
    for arm, spread, ratio in rows:
        table.add_row(arm, str(spread), ratio)
    return table
