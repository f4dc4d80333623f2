"""Processes that a process started, and those that these started: to end what outlives it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

Known = tuple[int, str]
"""A pid and when it was started: a pid alone may be another process's by then."""


def descendants(pid: int) -> list[Known]:
    """All of them, as long as their parents live."""
    parents: dict[int, list[Known]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        fields = _fields(stat)
        if fields:
            parents.setdefault(int(fields[1]), []).append((int(stat.parent.name), fields[19]))
    found, todo = [], [pid]
    while todo:
        children = parents.get(todo.pop(), [])
        found += children
        todo += [child for child, _ in children]
    return found


def end(processes: list[Known], patience_s: float) -> None:
    """Waits for their end, and kills those that take too long."""
    deadline = time.monotonic() + patience_s
    while any(map(_lives, processes)) and time.monotonic() < deadline:
        time.sleep(0.05)
    for known in filter(_lives, processes):
        try:
            os.kill(known[0], signal.SIGKILL)
        except ProcessLookupError:
            pass


def _lives(known: Known) -> bool:
    fields = _fields(Path(f"/proc/{known[0]}/stat"))
    return bool(fields) and fields[19] == known[1] and fields[0] != "Z"


def _fields(stat: Path) -> list[str]:
    """From the state on: the name before it may hold anything."""
    try:
        return stat.read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []
