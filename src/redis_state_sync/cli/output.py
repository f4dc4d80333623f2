"""What commands print: JSON for programs, tables and plain words for people."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

_UNITS = ("B", "KiB", "MiB", "GiB")


def print_json(value: Any) -> None:
    """One JSON value."""
    print(json.dumps(value, ensure_ascii=False, indent=2))


def console() -> Console:
    """Where people read. Nothing in a text is taken for markup."""
    return Console(markup=False, highlight=False, soft_wrap=True)


def table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    """An empty table. Columns in `right` hold numbers."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(
            column, justify="right" if column in right else "left", no_wrap=True, overflow="fold"
        )
    return made


def rows(pairs: list[tuple[str, str | Text]]) -> Table:
    """Names and what they stand for."""
    made = Table.grid(padding=(0, 2))
    made.add_column(style="bold")
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
