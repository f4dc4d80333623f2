"""Each fault once on its own, then a random order of them, on real servers and processes."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest

from tests.chaos.conftest import Worlds
from tests.chaos.content import FROZEN
from tests.chaos.faults import REGISTRY
from tests.chaos.runner import seen, soak_command
from tests.chaos.sequence import Step, steps
from tests.chaos.world import Plan

# On a machine that is short of CPUs a process alone may take half a minute to start.
pytestmark = pytest.mark.timeout(240)

SEED = 11
RANDOM_S = 45.0
LONGEST_S = 2.0

ALONE: dict[str, list[dict[str, Any]]] = {
    "all_killed": [{"same_writer": True}, {"same_writer": False}],
    "black_hole": [{"whose": "all", "end": "thaw"}, {"whose": "all", "end": "reset"}],
    "blob_damaged": [{"quiet": False, "where": 0.5}, {"quiet": True, "where": 0.5}],
    "blobs_deleted": [
        {"which": "all", "quiet": False},
        {"which": "all", "quiet": True},
        {"which": FROZEN, "quiet": True},
    ],
    "bytes_flipped": [{"whose": "readers", "every": 1000, "seed": 1}],
    "cache_wiped": [{"what": "folder"}, {"what": "files"}],
    "clients_paused": [{"all": True, "ms": 800}, {"all": False, "ms": 800}],
    "connections_lost": [{"whose": "learner"}, {"whose": "readers"}],
    "connections_refused": [{"whose": "all"}],
    "flush_all": [{"quiet": False}, {"quiet": True}],
    "frozen_blob_damaged": [{"quiet": False, "where": 0.5}, {"quiet": True, "where": 0.5}],
    "learner_killed": [{"same_writer": True}, {"same_writer": False}],
    "learner_superseded": [{"same_writer": True}, {"same_writer": False}],
    "cache_forbidden": [{"by": "mode"}, {"by": "link"}, {"by": "file"}],
    "out_of_memory": [{"by": "limit"}, {"by": "foreign data"}],
    "reader_killed": [{"which": 1}],
    "reader_stopped": [{"which": 2}],
    "replica_promoted": [{"lag_s": 0.5}],
    "replies_cut": [
        {"whose": "all", "after": 2, "by": "close"},
        {"whose": "all", "after": 3000, "by": "reset"},
    ],
    "replies_delayed": [{"whose": "all", "by_s": 0.03}, {"whose": "all", "by_s": 1.0}],
    "replies_dribbled": [{"whose": "all", "bytes": 1, "pause_s": 0.001}],
    "reply_lost": [{"whose": "all", "after": after} for after in (0, 2, 3, 4)],
    "requests_throttled": [{"whose": "all", "bytes": 5000}],
    "restored_from_dump": [{"older_s": 0.5}],
    "restored_from_log": [{"logged_s": 0.5, "torn": 0}, {"logged_s": 0.5, "torn": 50_000}],
    "versions_deleted": [{"quiet": False}, {"quiet": True}],
}
CASES = [
    pytest.param(kind, params, id="-".join([kind, *(str(v) for v in params.values())]))
    for kind in sorted(REGISTRY)
    for params in ALONE.get(kind, [{}])
]


def test_every_kind_is_tried() -> None:
    """Each kind has a case with the parameters that it takes."""
    assert ALONE.keys() <= REGISTRY.keys()
    for kind, drawn in itertools.groupby(sorted(steps_of_each(), key=lambda s: s.kind), _kind):
        names = {frozenset(step.params) for step in drawn}
        assert names == {frozenset(params) for params in ALONE.get(kind, [{}])}


def steps_of_each() -> list[Step]:
    return list(itertools.islice(steps(1), len(REGISTRY)))


def _kind(step: Step) -> str:
    return step.kind


@pytest.mark.parametrize(("kind", "params"), CASES)
def test_a_fault_on_its_own(
    worlds: Worlds, request: pytest.FixtureRequest, kind: str, params: dict[str, Any]
) -> None:
    """Promises hold while it lasts, and two seconds later all is as it was. C4 C10 C19 C63 C72"""
    step = Step(kind, params, seconds=1.0, pause_s=0.1)
    done = worlds.run(step, f"python -m pytest '{request.node.nodeid}'")
    assert seen(REGISTRY[kind], done), f"nobody noticed: {done}"


def test_any_byte_of_a_signed_state_may_be_flipped(
    worlds: Worlds, request: pytest.FixtureRequest
) -> None:
    """With a signing key, no flipped bit of any reply is taken for a state, or ends a learner."""
    plan = Plan(signed=True)
    for seed, every in ((1, 50), (2, 1000)):
        params = {"whose": "all", "every": every, "seed": seed}
        step = Step("bytes_flipped", params, seconds=1.5, pause_s=0.1)
        done = worlds.run(step, f"python -m pytest '{request.node.nodeid}'", plan)
        assert seen(REGISTRY["bytes_flipped"], done), f"nobody noticed: {done}"


def test_random_sequence(worlds: Worlds) -> None:
    """Promises hold through faults in a random order, also two at a time, with large states."""
    plan = Plan(SEED, large=True, every_s=0.1)
    planned = steps(SEED, longest_s=LONGEST_S)
    began, count = time.monotonic(), 0
    while time.monotonic() - began < RANDOM_S:
        count += 1
        command = soak_command(SEED, steps=count, longest=LONGEST_S, large=True, every=0.1)
        worlds.run(next(planned), command, plan)
