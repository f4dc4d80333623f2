"""Markdown of what was measured."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks import arms
from benchmarks.measures import Measure
from benchmarks.results import Results


def table(measures: Sequence[Measure]) -> str:
    """All cases of one metric: medians with p10–p90 over rounds, and ratios to Ray's.

    A ratio above 1 means that the arm is better than Ray's.
    """
    if not measures:
        return "_Not measured._"
    names = list(dict.fromkeys(arm for measure in measures for arm in measure.values))
    names.sort(key=_order)
    unit = measures[0].unit
    lines = [
        f"| {unit} | " + " | ".join(arms.TITLES.get(name, name) for name in names) + " |",
        "|---" * (len(names) + 1) + "|",
    ]
    for measure in measures:
        cells = [_cell(measure, name) for name in names]
        lines.append(f"| {measure.case} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _order(arm: str) -> int:
    known = list(arms.TITLES)
    return known.index(arm) if arm in known else -1


def _cell(measure: Measure, arm: str) -> str:
    if arm not in measure.values:
        return "–"
    text = str(measure.spread(arm))
    # A time of nothing, such as a server's that is not asked at all, has no ratio.
    if arm == arms.RAY or arms.RAY not in measure.values or 0 in measure.values[arm]:
        return text
    return f"{text}<br>{measure.ratio(arm, arms.RAY)} x"


def facts(results: Results) -> str:
    """The machine, and when it was how busy."""
    sections = list(results.sections.values())
    known = {key: value for key, value in sections[0].facts.items() if key != "boot"}
    lines = ["Machine: " + ", ".join(f"{key} {value}" for key, value in known.items()) + "."]
    loads = ", ".join(
        f"{s.name} {s.load_before[0]} → {s.load_after[0]} ({s.seconds:.0f} s, "
        f"{s.options['rounds']} rounds)"
        for s in sections
    )
    lines.append(f"Load average before → after each section: {loads}.")
    lines += [note + "." for s in sections for note in s.notes]
    return "\n\n".join(lines)
