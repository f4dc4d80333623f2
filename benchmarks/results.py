"""One file for each section, with all that is needed to make the pages again."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.measures import Measure


class ResultsError(Exception):
    """Results that can not be used, or not together."""


@dataclass
class Section:
    """What one section measured.

    Args:
        name: Of the section.
        facts: See `machine.facts`.
        options: How thorough it was.
        load_before: Load averages.
        load_after: The same, in the end.
        seconds: How long it took.
        measures: All that was measured.
        notes: What was left out, and why.
    """

    name: str
    facts: dict[str, Any]
    options: dict[str, Any]
    load_before: list[float]
    load_after: list[float]
    seconds: float
    measures: list[Measure]
    notes: list[str]

    def save(self, folder: Path) -> Path:
        """Writes ``<folder>/<name>.json``."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.name}.json"
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")
        return path

    @classmethod
    def load(cls, path: Path) -> Section:
        """Reads what `save` wrote."""
        values = json.loads(path.read_text())
        values["measures"] = [Measure(**measure) for measure in values["measures"]]
        return cls(**values)


class Results:
    """All sections of one boot of one machine."""

    def __init__(self, sections: list[Section]) -> None:
        boots = {section.facts["boot"] for section in sections}
        if len(boots) > 1:
            raise ResultsError(
                "the sections are of different machines, or of different boots of one: "
                + ", ".join(f"{s.name}: {s.facts['boot']}" for s in sections)
                + "; run them again"
            )
        self.sections = {section.name: section for section in sections}

    @classmethod
    def load(cls, folder: Path) -> Results:
        """Of all sections in a folder.

        Raises:
            ResultsError: If there are none, or they do not belong together.
        """
        paths = sorted(folder.glob("*.json"))
        if not paths:
            raise ResultsError(f"{folder} holds no results: run some sections first")
        return cls([Section.load(path) for path in paths])

    def measures(self, metric: str) -> list[Measure]:
        """The rows of one metric, in the order that they were measured in."""
        return [m for s in self.sections.values() for m in s.measures if m.metric == metric]

    def find(self, metric: str, case: str) -> Measure | None:
        """One row, or None if it was not measured."""
        return next((m for m in self.measures(metric) if m.case == case), None)
