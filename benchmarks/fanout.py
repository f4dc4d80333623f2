"""Fan-out: from the publish until the last of many readers on one node has applied it."""

from __future__ import annotations

import contextlib

from benchmarks import arms, machine
from benchmarks.group import open_group
from benchmarks.lab import Lab
from benchmarks.measures import Measure
from benchmarks.options import Options
from benchmarks.rounds import Turns, Watch
from benchmarks.states import MB, label

LAST_APPLIED = "publish until the last reader has applied"
# Of one reader, besides states: torch, and a share of what the server holds.
_READER_BYTES = 150 * MB


def case_of(nbytes: int, count: int) -> str:
    """What a case is called."""
    return f"{label(nbytes)}, {count} readers"


def run(lab: Lab, options: Options, watch: Watch) -> list[Measure]:
    """All cases of the section that fit into memory."""
    measures = []
    for nbytes in options.fanned_out:
        for count in options.readers:
            if needed_bytes(nbytes, count) > machine.available_bytes():
                lab.notes.append(
                    f"{case_of(nbytes, count)}: left out; all arms together would need "
                    f"{needed_bytes(nbytes, count) / 1e9:.0f} GB of memory"
                )
                continue
            measures.append(_case(lab, nbytes, count, options, watch))
            lab.empty()
    return measures


def needed_bytes(nbytes: int, count: int) -> int:
    """Of all arms at once, ample: bytes fetched, decoded and applied in ours; applied in Ray's."""
    ours = sum(arms.offered(arm) for arm in (arms.UNIX, arms.NODE))
    return count * (ours * (3 * nbytes + _READER_BYTES) + nbytes + _READER_BYTES) + 12 * nbytes


def _case(lab: Lab, nbytes: int, count: int, options: Options, watch: Watch) -> Measure:
    case = case_of(nbytes, count)
    measure = Measure(LAST_APPLIED, case, "ms")
    names = [arms.RAY, *(arm for arm in (arms.UNIX, arms.NODE) if arms.offered(arm))]
    watch(f"fan-out, {case}: starting readers", 0, 1)
    with contextlib.ExitStack() as stack:
        groups = {arm: stack.enter_context(open_group(lab, arm, nbytes, count)) for arm in names}

        def turn(arm: str) -> None:
            measure.add(arm, 1e3 * groups[arm].fan_out())

        Turns(names, options.rounds).run(turn, watch, f"fan-out, {case}", [measure])
    return measure
