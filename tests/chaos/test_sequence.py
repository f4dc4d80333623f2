"""The order of faults: made of the seed, and of nothing else."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys

from tests.chaos.faults import REGISTRY
from tests.chaos.members import ROOT
from tests.chaos.sequence import one, steps

COUNT = 100


def test_the_same_seed_is_the_same_sequence() -> None:
    """Kinds, parameters and durations are the same in any process, and others for another seed."""
    code = (
        "import itertools; from tests.chaos.sequence import steps\n"
        f"for step in itertools.islice(steps(5), {COUNT}): print(repr(step))"
    )
    there = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    here, other = ([repr(s) for s in itertools.islice(steps(n), COUNT)] for n in (5, 6))
    assert there == here
    assert here != other


def test_every_kind_comes_before_any_comes_again() -> None:
    """A run of as many steps as there are kinds has all of them."""
    assert {s.kind for s in itertools.islice(steps(1), len(REGISTRY))} == REGISTRY.keys()


def test_durations_are_within_what_was_asked_for() -> None:
    """No fault lasts longer than it should, and some are there two at a time."""
    drawn = list(itertools.islice(steps(1, longest_s=4.0), 10 * len(REGISTRY)))
    assert all(0.3 <= s.seconds <= min(4.0, REGISTRY[s.kind].longest_s) for s in drawn)
    assert any(s.also for s in drawn)
    assert not any(s.also for s in itertools.islice(steps(1, pairs=False), 10 * len(REGISTRY)))


def test_parameters_are_plain_data() -> None:
    """What a step is made of can be printed and typed again."""
    for kind in REGISTRY:
        assert one(kind, 1).kind == kind
        json.dumps(one(kind, 1).params)


def test_every_fault_says_what_it_is() -> None:
    """Each kind has a docstring of its own."""
    for fault in REGISTRY.values():
        assert (fault.__doc__ or "").rstrip().endswith("."), fault
