"""What observers hear, when, and on which thread."""

from __future__ import annotations

import logging
import threading

import pytest

from redis_state_sync.errors import StoreTimeoutError
from redis_state_sync.events import Event, Failed, Fetched, Polled
from redis_state_sync.reports import Reports
from redis_state_sync.version import Version

V = Version(1, 1)


def made() -> tuple[Reports, list[Event]]:
    events: list[Event] = []
    return Reports((events.append,)), events


def test_idle_polls_are_told_of_together() -> None:
    """Polls in vain while acting come as one event: how many, and of how many seconds each."""
    reports, events = made()
    for seconds in (1.0, 2.0, 6.0):
        reports.polled(None, seconds, acting=True)
    assert events == []
    reports.catch_up()
    assert events == [Polled(None, 3.0, 3)]
    reports.catch_up()
    reports.polled(None, 5.0, acting=True)
    reports.catch_up()
    assert events[1:] == [Polled(None, 5.0, 1)]


def test_other_polls_are_told_of_at_once() -> None:
    """A poll that found something, or that the reader waited for, is an event of its own."""
    reports, events = made()
    reports.polled(V, 1.0, acting=True)
    reports.polled(None, 2.0, acting=False)
    assert events == [Polled(V, 1.0), Polled(None, 2.0)]


def test_nothing_is_kept_for_nobody() -> None:
    """Without observers polls leave nothing behind."""
    reports = Reports(())
    reports.polled(None, 1.0, acting=False)
    reports.polled(None, 1.0, acting=True)
    with reports.put_off():
        reports.polled(V, 1.0, acting=True)
    reports.catch_up()
    assert reports._waiting == []
    assert not reports.anyone_listens
    assert made()[0].anyone_listens


def test_what_is_put_off_comes_in_order() -> None:
    """Within the block nothing is told, afterwards all of it once, and in its order."""
    reports, events = made()
    error = StoreTimeoutError("no answer")
    with reports.put_off():
        reports.polled(None, 1.0, acting=True)
        reports.polled(V, 2.0, acting=True)
        reports.tell(Fetched(V, 10, 0, 3.0))
        reports.failed("fetch", error, None)
        assert events == []
    assert events == []
    reports.catch_up()
    told = [
        Polled(None, 1.0, 1),
        Polled(V, 2.0),
        Fetched(V, 10, 0, 3.0),
        Failed("fetch", error.category, "no answer"),
    ]
    assert events == told
    reports.catch_up()
    reports.tell(told[0])
    assert events == [*told, told[0]]


def test_a_block_that_fails_ends() -> None:
    """After an error within the block observers hear again."""
    reports, events = made()
    with pytest.raises(ZeroDivisionError), reports.put_off():
        raise ZeroDivisionError
    reports.polled(V, 1.0, acting=False)
    assert events == [Polled(V, 1.0)]


def test_observers_hear_on_the_thread_that_catches_up() -> None:
    """What another thread did is told where it is caught up with."""
    threads: list[threading.Thread] = []
    reports = Reports((lambda event: threads.append(threading.current_thread()),))

    def work() -> None:
        with reports.put_off():
            reports.polled(V, 1.0, acting=True)
            reports.polled(None, 1.0, acting=True)

    other = threading.Thread(target=work)
    other.start()
    other.join()
    reports.catch_up()
    assert threads == [threading.current_thread()] * 2


def test_a_warning_is_given_once(caplog: pytest.LogCaptureFixture) -> None:
    """Until something was applied, a failure of one kind is counted each time and said once."""
    reports, events = made()
    error = StoreTimeoutError("no answer")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            reports.failed("poll", error, None)
        reports.failed("fetch", error, None)
        reports.recovered()
        reports.failed("poll", error, None)
    assert len(events) == 5
    assert [r.getMessage().split()[0] for r in caplog.records] == ["poll", "fetch", "poll"]


def test_what_need_not_be_asked_is_told_apart() -> None:
    """Polls that were not made count as polls, take no time, and are told of as such."""
    reports, events = made()
    reports.unchanged(acting=False)
    assert events == [Polled(None, 0.0, unasked=1)]
    reports.unchanged(acting=True)
    reports.polled(None, 6.0, acting=True)
    reports.unchanged(acting=True)
    reports.catch_up()
    reports.catch_up()
    assert events[1:] == [Polled(None, 2.0, 3, unasked=2)]
