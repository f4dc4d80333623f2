"""Runs in files of their own, written at once: a grid goes on where it was interrupted."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_FAILURES = "failures.jsonl"


@dataclass(frozen=True)
class RunKey:
    """Which run.

    Args:
        cell: Of the grid.
        arm: What is compared.
        seed: Of the run; runs of one cell and seed belong together.
        digest: Of everything else that a run depends on, see `digest_of`.
    """

    cell: str
    arm: str
    seed: int
    digest: str

    def __str__(self) -> str:
        return f"{self.cell}, {self.arm}, seed {self.seed}"


def digest_of(config: Mapping[str, Any]) -> str:
    """Tells runs of different configs apart.

    Args:
        config: Plain values, in any order.
    """
    text = json.dumps(config, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


class RunStore:
    """The runs in a folder.

    Args:
        folder: Made when it is needed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, key: RunKey) -> Path:
        """Of a run's file."""
        return self.folder / key.cell / f"{key.arm}-seed{key.seed}-{key.digest}.json"

    def load(self, key: RunKey) -> dict[str, Any] | None:
        """A finished run, or None if it is missing or its file is not whole."""
        try:
            return _parse(self.path(key).read_text())
        except FileNotFoundError:
            return None

    def save(self, key: RunKey, run: Mapping[str, Any]) -> Path:
        """Writes a run's file whole or not at all."""
        path = self.path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_suffix(f".{os.getpid()}.tmp")
        values = {"cell": key.cell, "arm": key.arm, "seed": key.seed, "digest": key.digest}
        beside.write_text(json.dumps({**values, **run}, indent=None) + "\n")
        os.replace(beside, path)
        return path

    def runs(self) -> list[dict[str, Any]]:
        """All finished ones, sorted by cell, arm and seed."""
        found = [_parse(path.read_text()) for path in sorted(self.folder.glob("*/*.json"))]
        return [run for run in found if run is not None]

    def note_failure(self, key: RunKey, error: str) -> None:
        """Keeps what went wrong; a later success does not remove it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / _FAILURES).open("a") as file:
            line = {"cell": key.cell, "arm": key.arm, "seed": key.seed, "error": error}
            file.write(json.dumps(line) + "\n")

    def failures(self) -> list[dict[str, Any]]:
        """All that were noted, in order."""
        try:
            lines = (self.folder / _FAILURES).read_text().splitlines()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in lines]


def _parse(text: str) -> dict[str, Any] | None:
    try:
        run = json.loads(text)
    except json.JSONDecodeError:
        return None
    return run if isinstance(run, dict) and "arm" in run else None
