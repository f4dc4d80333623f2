"""`redis-state-sync diff`: what differs between two versions."""

from __future__ import annotations

import math
from functools import reduce
from operator import add
from typing import Annotated, Any

import typer
from rich.text import Text

from redis_state_sync.cli import output
from redis_state_sync.cli.comparing import Change, compare
from redis_state_sync.cli.options import TIMEOUT_S, AsJson, Namespace, Timeout, Url, Which
from redis_state_sync.cli.session import history
from redis_state_sync.snapshot import Snapshot

_MOST_PATHS = 3


def diff(
    namespace: Namespace,
    before: Which,
    after: Which = "newest",
    arrays: Annotated[bool, typer.Option("--arrays", help="Show each array that changed.")] = False,
    url: Url = None,
    timeout: Timeout = TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Shows which components differ between two versions, and by how much weights changed.

    Fetches both, as a reader does, but leaves no note.
    """
    with history(namespace, url, timeout, as_json=as_json) as opened:
        old, new = opened.fetch(before), opened.fetch(after)
        kinds = {
            name: _kind(name, old, new)
            for name in {**old.manifest.components, **new.manifest.components}
        }
        changes = {
            name: compare(old.view(name), new.view(name))
            for name, kind in kinds.items()
            if kind == "changed"
        }
    if as_json:
        output.print_json(_as_json(old, new, kinds, changes, arrays))
        return
    console = output.console()
    console.print(f"{old.version} -> {new.version}")
    if old.weights_seq_no is not None and new.weights_seq_no is not None:
        console.print(f"weights_seq_no {old.weights_seq_no} -> {new.weights_seq_no}")
    numbers = ("norm", "of change", "relative", "largest", "arrays")
    table = output.table("component", "", *numbers, "other changes", right=numbers)
    for name, kind in kinds.items():
        if kind != "changed":
            table.add_row(name, Text(kind, style="dim" if kind == "same" else "bold"))
            continue
        table.add_row(name, Text(kind, style="yellow"), *_cells(_total(changes[name])))
        if arrays:
            for path, change in changes[name].items():
                if change.arrays:
                    table.add_row(f"  {path}", "", *_cells(change))
    output.print_table(table, console, spare=("arrays", "largest", "norm", "other changes"))


def _kind(name: str, old: Snapshot, new: Snapshot) -> str:
    if name not in old:
        return "added"
    if name not in new:
        return "removed"
    before, after = old.manifest, new.manifest
    if before.algorithm == after.algorithm and before.components[name] == after.components[name]:
        return "same"
    return "changed"


def _total(changes: dict[str, Change]) -> Change:
    return reduce(add, changes.values(), Change())


def _cells(change: Change) -> list[str]:
    relative = change.relative
    shown = ", ".join(change.others[:_MOST_PATHS])
    more = len(change.others) - _MOST_PATHS
    return [
        f"{change.before:.4g}",
        f"{change.difference:.4g}",
        "-" if relative is None else f"{relative:.2%}",
        f"{change.largest:.4g}",
        str(change.arrays),
        f"{shown} and {more} more" if more > 0 else shown,
    ]


def _as_json(
    old: Snapshot,
    new: Snapshot,
    kinds: dict[str, str],
    changes: dict[str, dict[str, Change]],
    arrays: bool,
) -> dict[str, Any]:
    components: dict[str, Any] = {}
    for name, kind in kinds.items():
        components[name] = {"change": kind}
        if kind == "changed":
            components[name] |= _numbers(_total(changes[name]))
            components[name]["others"] = list(_total(changes[name]).others)
            if arrays:
                components[name]["each"] = {
                    path: _numbers(change)
                    for path, change in changes[name].items()
                    if change.arrays
                }
    return {"before": str(old.version), "after": str(new.version), "components": components}


def _numbers(change: Change) -> dict[str, Any]:
    numbers = {
        "norm": change.before,
        "norm_of_change": change.difference,
        "relative": change.relative,
        "largest": change.largest,
    }
    # JSON knows neither NaN nor infinity.
    finite = {n: v if v is None or math.isfinite(v) else None for n, v in numbers.items()}
    return {**finite, "arrays": change.arrays}
