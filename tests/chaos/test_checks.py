"""The checks themselves: each finds what it is for, and nothing in a run where all went well."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from redis_state_sync import Version
from tests.chaos.bounds import (
    OWN_WORK_S,
    RECOVERED_S,
    SETTINGS,
    Refresh,
    longest,
)
from tests.chaos.checks import History, violations
from tests.chaos.content import FROZEN, LARGE, Mark, TornError, mark_of, state
from tests.chaos.journal import Line
from tests.chaos.recovery import Recovery, last_disturbance, recovered, too_late
from tests.chaos.stalls import Gauge, overlap


def learner(writer: str, generation: int, claimed: float, counters: range) -> list[Line]:
    """One that publishes a state each second from then on."""
    lines: list[Line] = [{"t": claimed - 0.5, "ev": "start", "writer": writer}]
    lines.append({"t": claimed, "ev": "claimed", "generation": generation})
    for second, counter in enumerate(counters, 1):
        t, number = claimed + second, second
        lines.append({"t": t, "ev": "hands", "counter": counter})
        quick = {"seconds": 0.001, "stalled": 0.0, "gap_s": 0.0}
        lines.append({"t": t, "ev": "handed", "number": number, "counter": counter, **quick})
        lines.append({"t": t + 0.1, "ev": "stored", "version": f"{generation}-{number}"})
    return lines


def applied(t: float, version: str, by: str, writer: str, counter: int) -> Line:
    made = {"learner": by, "counter": counter, "seq_no": counter, "writer": writer}
    return {"t": t, "ev": "applied", "version": version, **made}


def slow(**values: Any) -> Line:
    """A refresh of a second, unless it is said otherwise."""
    did = {"polls": 1, "polled_s": 0.0, "fetches": 0, "notes": 0, "bytes": 0}
    whose = {"first": False, "shared": False}
    took = {"t": 9.0, "ev": "slow", "since": 8.0, "seconds": 1.0, "stalled": 0.0, "gap_s": 0.0}
    return {**took, **did, **whose, **values}


def good() -> History:
    """Two learners, one after the other, and two readers, of which one follows the first."""
    return History(
        learners={
            "one": learner("w1", 10, 0.0, range(1, 6)),
            "two": learner("w2", 20, 10.0, range(1, 6)),
        },
        readers={
            "any": [
                {"t": 0.5, "ev": "start", "writer": None},
                applied(1.2, "10-1", "one", "w1", 1),
                applied(3.2, "10-3", "one", "w1", 3),
                slow(seconds=0.1),
                applied(11.2, "20-1", "two", "w2", 1),
                {"t": 20.0, "ev": "beat", "counts": {}},
            ],
            "follower": [
                {"t": 0.5, "ev": "start", "writer": "w1"},
                applied(3.3, "10-3", "one", "w1", 3),
                applied(5.2, "10-5", "one", "w1", 5),
            ],
        },
        logs={"any": "    1 WARNING MainThread poll failed, going on with version 10-3: ..."},
    )


def found(history: History) -> list[tuple[int, str]]:
    return [(violation.invariant, violation.who) for violation in violations(history)]


def test_nothing_is_found_where_all_went_well() -> None:
    """A run in which every promise was kept has no violations."""
    assert found(good()) == []


def _back(history: History) -> None:
    history.readers["any"].append(applied(12.0, "20-1", "two", "w2", 1))


def _to_the_older_generation(history: History) -> None:
    history.readers["any"].append(applied(12.0, "10-5", "one", "w1", 5))


def _torn(history: History) -> None:
    history.readers["any"].append({"t": 12.0, "ev": "violation", "text": "a mixture"})


def _another_content(history: History) -> None:
    history.readers["any"][2] = applied(3.2, "10-3", "one", "w1", 2)


def _another_record(history: History) -> None:
    history.readers["any"][2]["seq_no"] = 2


def _never_handed_over(history: History) -> None:
    history.readers["any"][4] = applied(11.2, "20-2", "two", "w2", 7)


def _of_nobody(history: History) -> None:
    history.readers["any"][4] = applied(11.2, "30-1", "two", "w2", 1)


def _of_another(history: History) -> None:
    history.readers["any"][4] = applied(11.2, "20-1", "one", "w1", 1)


def _two_owners(history: History) -> None:
    history.learners["two"].append({"t": 19.0, "ev": "stored", "version": "10-6"})


def _another_writer(history: History) -> None:
    history.readers["any"][4]["writer"] = "w1"


def _not_the_one_it_follows(history: History) -> None:
    history.readers["follower"].append(applied(11.2, "20-1", "two", "w2", 1))


def _after_it_was_superseded(history: History) -> None:
    late = learner("w1", 10, 0.0, range(1, 6)) + learner("w1", 10, 14.0, range(6, 7))[2:]
    late[-2]["number"] = 6
    history.learners["one"][:] = late
    history.readers["follower"].append(applied(15.5, "10-6", "one", "w1", 6))


def _slow_poll(history: History) -> None:
    history.readers["any"].append(slow())


def _slow_publish(history: History) -> None:
    history.learners["one"].append(
        {
            "t": 9.0,
            "ev": "handed",
            "number": 6,
            "counter": 6,
            "seconds": 0.5,
            "stalled": 0.0,
            "gap_s": 0.0,
        }
    )


@pytest.mark.parametrize(
    ("harm", "expected"),
    [
        (_back, [(1, "any")]),
        (_to_the_older_generation, [(1, "any")]),
        (_torn, [(2, "any")]),
        (_another_content, [(2, "any"), (2, "follower")]),
        (_another_record, [(2, "any"), (2, "follower")]),
        (_never_handed_over, [(2, "any")]),
        (_of_nobody, [(3, "any")]),
        (_of_another, [(3, "any")]),
        (_two_owners, [(3, "two")]),
        (_another_writer, [(3, "any")]),
        (_not_the_one_it_follows, [(3, "follower")]),
        (_after_it_was_superseded, [(3, "follower")]),
        (_slow_poll, [(4, "any")]),
        (_slow_publish, [(4, "one")]),
    ],
)
def test_a_violation_is_found(
    harm: Callable[[History], None], expected: list[tuple[int, str]]
) -> None:
    """Each way to break a promise is found, and blamed on the process that did it."""
    history = copy.deepcopy(good())
    harm(history)
    assert set(found(history)) == set(expected)


@pytest.mark.parametrize(
    "text",
    [
        "Traceback (most recent call last):\n  ...",
        "   10 ERROR redis-state-sync-publish unexpected error during publish",
        "Exception in thread Thread-3",
    ],
)
def test_what_nobody_expected_in_a_log_is_found(text: str) -> None:
    """A log with an exception that nobody handled is a violation."""
    assert found(replace(good(), logs={"any": f"fine\n{text}"})) == [(6, "any")]


def test_what_was_published_again_is_the_state_before_it() -> None:
    """A number that nobody handed over holds what was handed over before it, and nothing else."""
    history = copy.deepcopy(good())
    history.readers["any"].append(applied(16.0, "20-6", "two", "w2", 5))
    assert found(history) == []
    history.readers["any"][-1]["counter"] = history.readers["any"][-1]["seq_no"] = 4
    assert found(history) == [(2, "any")]


def test_a_killed_learner_may_not_have_noted_its_last_number() -> None:
    """What a learner was just handing over when it was killed may be stored as the next number."""
    history = copy.deepcopy(good())
    history.learners["two"].append({"t": 16.0, "ev": "hands", "counter": 6})
    history.readers["any"].append(applied(16.1, "20-6", "two", "w2", 6))
    assert found(history) == []
    history.readers["any"][-1]["version"] = "20-4"
    assert found(history) == [(2, "any")]


def test_a_lost_claim_keeps_nobody_out_until_its_learner_is_heard_of_again() -> None:
    """An older learner may go on while the store lacks the claim, and no longer."""
    history = copy.deepcopy(good())
    _after_it_was_superseded(history)  # It hands over at 15.0, and that is applied at 15.5.
    newer = history.learners["two"]
    newer[:] = [line for line in newer if line["t"] < 14.0]
    assert found(history) == [(3, "follower")]
    lost = replace(history, losses=[14.5])
    assert found(lost) == []
    newer.append({"t": 14.7, "ev": "stored", "version": "20-4"})
    assert found(lost) == [(3, "follower")]


def test_bounds_are_made_of_the_settings() -> None:
    """A refresh may take what its polls, notes and fetches may, and no more."""
    poll, stall = SETTINGS.poll_timeout_s, SETTINGS.stall_timeout_s
    idle = Refresh(polls=1, polled_s=0.0, fetches=0, notes=0, bytes=0, first=False, shared=False)
    assert longest(idle, slow_line=False) == pytest.approx(poll + OWN_WORK_S)
    assert longest(idle, slow_line=True) == pytest.approx(poll + OWN_WORK_S)
    fetch = Refresh(polls=1, polled_s=0.0, fetches=1, notes=1, bytes=0, first=False, shared=False)
    assert longest(fetch, slow_line=False) == pytest.approx(2 * poll + stall + OWN_WORK_S)
    waiting = replace(fetch, shared=True)
    assert longest(waiting, slow_line=False) == pytest.approx(2 * poll + 2 * stall + OWN_WORK_S)
    assert longest(fetch, slow_line=True) == pytest.approx(
        2 * poll + SETTINGS.transfer_timeout_s + OWN_WORK_S
    )


@pytest.mark.parametrize(
    ("values", "allowed"),
    [
        ({}, False),
        ({"stalled": 0.9}, True),
        ({"stalled": 0.5}, False),
        ({"gap_s": 0.2}, True),
        ({"gap_s": 0.1}, False),
        ({"first": True}, True),
        ({"first": True, "seconds": 2.5}, False),
        ({"fetches": 1, "seconds": 0.6}, True),
        ({"fetches": 1}, False),
        ({"fetches": 1, "shared": True}, True),
        ({"fetches": 1, "shared": True, "seconds": 1.3}, False),
        ({"shared": True}, False),
        ({"fetches": 1, "slow": True}, True),
        ({"slow": True}, False),
        ({"fetches": 1, "slow": True, "polled_s": 0.2}, False),
        ({"fetches": 1, "slow": True, "polled_s": 0.2, "polls": 2}, True),
        ({"fetches": 1, "slow": True, "polled_s": 0.2, "gap_s": 0.02}, True),
    ],
)
def test_a_slow_refresh_needs_a_reason(values: dict[str, Any], allowed: bool) -> None:
    """A long refresh is one that stood still, fetched, or was the first; else it is a violation."""
    history = copy.deepcopy(good())
    trickles = values.pop("slow", False)
    history.readers["any"].append(slow(**values))
    history = replace(history, slow=[(7.0, 8.5)] if trickles else [(1.0, 7.5)])
    assert found(history) == ([] if allowed else [(4, "any")])


def test_a_cpu_that_stood_still_is_a_reason() -> None:
    """What the machine, or the process itself, stood still is taken off, each moment once."""
    history = copy.deepcopy(good())
    history.readers["any"].append(slow())
    stopped = replace(history, stalls=[(8.1, 8.5), (8.4, 8.99), (1.0, 2.0)])
    assert found(stopped) == []
    assert found(replace(history, stalls=[(8.1, 8.5), (9.0, 9.9)])) == [(4, "any")]
    history.readers["any"].append({"t": 9.1, "ev": "stall", "since": 8.05, "until": 8.95})
    assert found(history) == []


def test_recovery_takes_until_the_last_one_holds_the_newest_version() -> None:
    """It counts from the end of the fault, for learner, readers and one that has nothing yet."""
    v = [Version(1, n) for n in range(5)]
    stored = [(1.0, v[1]), (10.5, v[2]), (10.9, v[3])]
    held = [[(1.1, v[1]), (11.0, v[3])], [(10.6, v[2])]]
    assert recovered(10.0, stored[:1], held, [(11.5, v[3])]) is None
    assert recovered(10.0, stored, held, []) is None
    assert recovered(10.0, stored, [held[0][:1], held[1]], [(11.5, v[3])]) is None
    took = recovered(10.0, stored, held, [(11.5, v[3])])
    assert took == Recovery(0.5, 1.0, 1.5)
    assert took.seconds == 1.5


def test_a_quiet_learners_last_version_must_be_there() -> None:
    """Without new versions all is well once the last one is held, also by one that had nothing."""
    v = [Version(1, n) for n in range(5)]
    held = [[(1.1, v[1])]]
    assert recovered(10.0, [(1.0, v[1])], held, [], quiet=True) is None
    assert recovered(10.0, [(1.0, v[1])], held, [(10.2, v[1])], quiet=True) is not None
    again = [(1.0, v[1]), (10.5, v[2])]
    assert recovered(10.0, again, held, [(10.7, v[2])], quiet=True) is None


def test_a_late_recovery_is_a_violation() -> None:
    """Two seconds, and what a fault leaves behind, are all that it may take."""
    assert too_late(None)
    assert not too_late(Recovery(0.1, RECOVERED_S - 0.1, 0.2))
    assert too_late(Recovery(0.1, RECOVERED_S + 0.1, 0.2))
    assert too_late(Recovery(0.1, 0.2, RECOVERED_S + 0.1))
    assert not too_late(Recovery(RECOVERED_S + 0.1, 0.2, 0.2), grace_s=0.2)
    assert not too_late(Recovery(RECOVERED_S + 0.1, 0.2, 0.2, disturbed=0.2))
    assert too_late(Recovery(RECOVERED_S + 0.3, 0.2, 0.2, disturbed=0.2))


def test_two_seconds_count_from_the_last_disturbance() -> None:
    """What disturbed before the fault ended, or after all was well, is no excuse."""
    assert last_disturbance(10.0, 3.0, []) == 0.0
    assert last_disturbance(10.0, 3.0, [(8.0, 9.9), (13.1, 14.0)]) == 0.0
    assert last_disturbance(10.0, 3.0, [(10.5, 10.6), (9.0, 10.1)]) == pytest.approx(0.6)
    assert last_disturbance(10.0, 3.0, [(12.9, 14.0)]) == 3.0


@pytest.mark.parametrize("large", [False, True])
def test_a_whole_state_says_which_it_is(large: bool) -> None:
    """A snapshot that was not tampered with is known by its mark."""
    assert mark_of(state(Mark("one", 9), large=large), large=large) == Mark("one", 9)


@pytest.mark.parametrize("name", [*state(Mark("one", 9), large=True)])
@pytest.mark.parametrize("other", [Mark("one", 41), Mark("two", 9)])
def test_a_mixture_is_found(name: str, other: Mark) -> None:
    """One component of another state is found, whichever it is."""
    mixed = state(Mark("one", 9), large=True)
    mixed[name] = state(other, large=True)[name]
    if name == FROZEN:
        assert mark_of(mixed, large=True) == Mark("one", 9)
    else:
        with pytest.raises(TornError):
            mark_of(mixed, large=True)


def test_pieces_in_the_wrong_order_and_single_bits_are_found() -> None:
    """Each number of an array has its place and its value."""
    swapped = state(Mark("one", 9), large=True)
    weights = swapped[LARGE]["w"]
    swapped[LARGE]["w"] = np.concatenate([weights[1000:], weights[:1000]])
    for tampered in (swapped, state(Mark("one", 9), large=True)):
        if tampered is not swapped:
            tampered[FROZEN]["w"][123] ^= 1
        with pytest.raises(TornError):
            mark_of(tampered, large=True)


def test_missing_and_additional_components_are_found() -> None:
    """A state has all of its components and no others."""
    short, long = state(Mark("one", 1)), state(Mark("one", 1))
    del short["rl_module/p1"]
    long["rl_module/p2"] = long["rl_module/p1"]
    for tampered in (short, long):
        with pytest.raises(TornError, match="components"):
            mark_of(tampered)


def test_standing_still_is_counted_once() -> None:
    """Stalls of several processes at the same time are one stall of the machine."""
    assert overlap([(1, 3), (2, 4), (2.5, 2.6), (9, 12)], 0, 10) == pytest.approx(4)
    assert overlap([(1, 3)], 2, 2.5) == pytest.approx(0.5)
    assert overlap([], 0, 10) == 0


def test_a_thread_that_computes_alone_is_hardly_put_aside() -> None:
    """The gauge shows what it was made to wait for, and forgets it after a while."""
    gauge = Gauge()
    assert gauge.gap_s == 0
    for _ in range(5):
        gauge.measure()
    assert 0 < gauge.gap_s < 1
