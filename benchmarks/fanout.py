"""Fan-out: from the publish until the last of many readers on one node has applied it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from benchmarks import arms, machine
from benchmarks.group import open_group
from benchmarks.lab import Lab
from benchmarks.measures import Measure
from benchmarks.options import Options
from benchmarks.rounds import Turns, Watch
from benchmarks.states import MB, label

LAST_APPLIED = "publish until the last reader has applied"
LAST_USED = "publish until the last reader has read it once"
# How often a reader has the state at most: fetched, decoded and applied. Ray maps what it fetches.
_COPIES = {arms.RAY: 1, arms.UNIX: 3, arms.NODE: 2}
# Of one reader, besides states. Ours are forked, and share torch.
_RAY_READER_BYTES, _READER_BYTES = 300 * MB, 40 * MB
# Learners, servers and what is on its way between them.
_OTHER_COPIES = 12


def case_of(nbytes: int, count: int) -> str:
    """What a case is called."""
    return f"{label(nbytes)}, {count} readers"


def run(lab: Lab, options: Options, watch: Watch) -> list[Measure]:
    """All cases of the section that fit into memory."""
    measures = []
    for nbytes in options.fanned_out:
        for count in options.readers:
            names = [arm for arm in _COPIES if arms.offered(arm)]
            # The one without node cache first: it needs the most, and no target is about it.
            for dropped in (arms.UNIX, arms.NODE):
                needed = needed_bytes(nbytes, count, names)
                if needed > machine.available_bytes() and dropped in names:
                    names.remove(dropped)
                    lab.notes.append(
                        f"{case_of(nbytes, count)}: without {arms.TITLES[dropped]}; all arms "
                        f"together would need {needed / 1e9:.0f} GB of memory"
                    )
            if len(names) > 1:
                measures += _case(lab, nbytes, count, names, options, watch)
                lab.empty()
    return measures


def needed_bytes(nbytes: int, count: int, names: Sequence[str]) -> int:
    """Of these arms at once, ample."""
    total = _OTHER_COPIES * nbytes
    for arm in names:
        base = _RAY_READER_BYTES if arm == arms.RAY else _READER_BYTES
        total += count * (_COPIES[arm] * nbytes + base)
    return total


def _case(
    lab: Lab, nbytes: int, count: int, names: Sequence[str], options: Options, watch: Watch
) -> list[Measure]:
    case = case_of(nbytes, count)
    applied, used = Measure(LAST_APPLIED, case, "ms"), Measure(LAST_USED, case, "ms")
    watch(f"fan-out, {case}: starting readers", 0, 1)
    with contextlib.ExitStack() as stack:
        groups = {arm: stack.enter_context(open_group(lab, arm, nbytes, count)) for arm in names}

        def turn(arm: str) -> None:
            seconds = groups[arm].fan_out()
            applied.add(arm, 1e3 * seconds[0])
            used.add(arm, 1e3 * seconds[1])

        Turns(names, options.rounds).run(turn, watch, f"fan-out, {case}", [applied, used])
    return [applied, used]
