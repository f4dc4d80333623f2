"""What commands print: JSON for programs, tables and plain words for people."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

_UNITS = ("B", "KiB", "MiB", "GiB")
# What goes into a file or another program is not cut to a width that nobody looks at.
_UNLIMITED = 10_000
# What a first column may shrink to before others are left out.
_FIRST_COLUMN = 32
# Beyond it a line is hard to follow.
_MOST_READABLE = 100


def print_json(value: Any) -> None:
    """One JSON value."""
    print(json.dumps(value, ensure_ascii=False, indent=2))


def console() -> Console:
    """Where people read. Nothing in a text is taken for markup."""
    made = Console(markup=False, highlight=False, soft_wrap=True)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made.width = _UNLIMITED
    return made


def readable_width(console: Console) -> int | None:
    """Columns to fill on a terminal; None where there is none."""
    return min(console.width, _MOST_READABLE) if console.is_terminal else None


def table(*columns: str, right: Sequence[str] = (), wraps: int = 0) -> Table:
    """An empty table.

    Args:
        columns: Their headings.
        right: Those that hold numbers.
        wraps: Which one gives way where it is narrow.
    """
    made = Table(box=None, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        made.add_column(
            column,
            justify="right" if column in right else "left",
            no_wrap=number != wraps,
            overflow="fold",
        )
    return made


def print_table(made: Table, console: Console, *, spare: Sequence[str] = ()) -> None:
    """Prints a table; if it is too wide without the columns that can be spared.

    Args:
        made: The table.
        console: Where.
        spare: Columns, the one first that can be spared most easily.
    """
    left_out = []
    for name in spare:
        if _width(made, console) - max(0, _first(made) - _FIRST_COLUMN) <= console.width:
            break
        made = _without(made, name)
        left_out.append(name)
    console.print(made)
    if left_out:
        shown = f"not shown, as there is no room: {', '.join(left_out)}"
        console.print(Text(shown, style="dim"))


def _without(made: Table, name: str) -> Table:
    kept = [column for column in made.columns if column.header != name]
    fresh = Table(box=None, pad_edge=False, header_style="bold")
    for column in kept:
        fresh.add_column(
            column.header,
            justify=column.justify,
            no_wrap=column.no_wrap,
            overflow=column.overflow,
        )
    for cells in zip(*(column.cells for column in kept), strict=True):
        fresh.add_row(*cells)
    return fresh


def _width(made: Table, console: Console) -> int:
    unlimited = console.options.update(max_width=_UNLIMITED)
    return Measurement.get(console, unlimited, made).maximum


def _first(made: Table) -> int:
    column = made.columns[0]
    return max(cell_len(str(cell)) for cell in (column.header, *column.cells))


def rows(pairs: list[tuple[str, str | Text]]) -> Table:
    """Names and what they stand for."""
    made = Table.grid(padding=(0, 2))
    made.add_column(style="dim", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in pairs:
        made.add_row(name, value)
    return made


def size(count: int | None) -> str:
    """Bytes, in words."""
    if count is None:
        return "-"
    value = float(count)
    for unit in _UNITS:
        if value < 1024 or unit == _UNITS[-1]:
            break
        value /= 1024
    return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"


def age(seconds: float | None) -> str:
    """A time that passed, in words."""
    if seconds is None:
        return "-"
    if seconds < 100:
        return f"{max(0.0, seconds):.1f} s"
    for length, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * length or unit == "min":
            break
    return f"{seconds / length:.0f} {unit}"
