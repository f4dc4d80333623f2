"""What each process saw, a line of JSON each, in files that outlive it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Line = dict[str, Any]


class Journal:
    """Writes one file. Safe for threads: a line is one write.

    Times are of the monotonic clock, which is one and the same for all processes of a machine.
    """

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, event: str, **values: Any) -> None:
        """Adds a line."""
        line = json.dumps({"t": time.monotonic(), "ev": event, **values}, separators=(",", ":"))
        os.write(self._fd, line.encode() + b"\n")


class Tail:
    """Reads a file that is still being written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0

    def new(self) -> Iterator[Line]:
        """The lines since the last call. What is not a whole line yet comes next time."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._position)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._position += len(whole)
        yield from map(json.loads, whole.splitlines())


def read(path: Path) -> list[Line]:
    """A whole journal. A process that was killed may have left half a line."""
    return list(Tail(path).new())
