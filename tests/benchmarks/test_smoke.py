"""The benchmarks in short: every section runs, and no ratio is far from what it should be.

Ratios of arms that took turns within one run, with wide margins; never an absolute time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

pytest.importorskip("ray")

from benchmarks import arms, costs, fanout, fetch, poll, publish, scale
from benchmarks.lab import Lab, open_lab
from benchmarks.measures import Measure
from benchmarks.options import QUICK
from benchmarks.states import MB

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]

RAN = replace(QUICK, rounds=2)
COMPARED = replace(QUICK, rounds=7, pollers=(1,), sizes=(MB,))


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with open_lab(object_store_bytes=300_000_000) as running:
        yield running


def silent(what: str, done: int, of: int) -> None:
    pass


def one(measures: list[Measure], metric: str) -> Measure:
    (found,) = (m for m in measures if m.metric == metric)
    return found


def test_an_unchanged_poll_is_faster_than_rays(lab: Lab) -> None:
    """A poll that finds nothing new takes at most a third of a call of Ray's state server."""
    measures = poll.run(lab, COMPARED, silent)
    p50 = one(measures, poll.P50)
    assert p50.ratio(arms.TCP, arms.RAY).median >= 3, p50
    assert p50.ratio(arms.UNIX, arms.RAY).median >= 3, p50
    # What costs a round trip to a bare socket can not be less than one.
    assert p50.ratio(arms.TRACKING, arms.RAY).median >= 30, p50
    capacity = one(measures, poll.CAPACITY)
    assert capacity.ratio(arms.TCP, arms.RAY).median >= 3, capacity


def test_fetch_and_apply_keeps_up_with_rays(lab: Lab) -> None:
    """To fetch and apply 1 MB takes no more than twice as long as by Ray's shared memory."""
    measures = fetch.run(lab, COMPARED, silent)
    applied = one(measures, fetch.APPLY)
    assert applied.ratio(arms.UNIX, arms.RAY).median >= 0.5, applied
    fetched = one(measures, fetch.FETCH)
    # Else a limit is none, and what is compared with it means nothing.
    assert fetched.ratio(arms.RAW_UNIX, arms.UNIX).median > 1, fetched
    assert applied.ratio(arms.MEMCPY, arms.UNIX).median > 1, applied


def test_a_publish_holds_training_up_less_than_rays(lab: Lab) -> None:
    """To publish 1 MB holds the caller up no longer than Ray's put and push do."""
    measures = publish.run(lab, COMPARED, silent)
    held = one(measures, publish.HELD)
    assert held.ratio(arms.UNIX, arms.RAY).median >= 1, held


@pytest.mark.parametrize("section", [fanout, costs, scale], ids=lambda s: s.__name__)
def test_section_runs(lab: Lab, section: object) -> None:
    """A section measures each of its cases, and no cost is below zero."""
    measures = section.run(lab, RAN, silent)  # type: ignore[attr-defined]
    assert measures
    for measure in measures:
        assert measure.values, measure.metric
        # Of states this small, memory is lost in that of the processes around them.
        if "memory" not in measure.metric:
            assert all(v >= 0 for values in measure.values.values() for v in values), measure
