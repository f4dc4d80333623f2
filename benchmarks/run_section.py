"""Runs one section, with servers of its own and the machine's facts around it."""

from __future__ import annotations

import dataclasses
import time

from benchmarks import costs, fanout, fetch, machine, poll, publish, scale
from benchmarks.lab import open_lab
from benchmarks.options import Options
from benchmarks.results import Section
from benchmarks.rounds import Watch

_RUN = {
    "poll": poll.run,
    "fetch": fetch.run,
    "publish": publish.run,
    "fanout": fanout.run,
    "costs": costs.run,
    "scale": scale.run,
}


def run(name: str, options: Options, watch: Watch) -> Section:
    """Returns what was measured."""
    before, started = machine.load(), time.monotonic()
    with open_lab() as lab:
        measures = _RUN[name](lab, options, watch)
    return Section(
        name=name,
        facts=machine.facts(),
        options=dataclasses.asdict(options),
        load_before=before,
        load_after=machine.load(),
        seconds=time.monotonic() - started,
        measures=measures,
        notes=lab.notes,
    )
