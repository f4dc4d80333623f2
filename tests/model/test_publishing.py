"""The publisher with its thread: what `wait` and `flush` promise, whatever befalls the store."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from redis_state_sync import Snapshot, StalePublisherError, StatePublisher, decisions
from redis_state_sync.errors import StoreError, StoreTimeoutError, StoreUnavailableError
from redis_state_sync.publication import Publication
from redis_state_sync.version import Version
from tests.model.machine import WRITES, Handle, Reader
from tests.model.places import WAIT, Place, places

DOWN = StoreUnavailableError("connection refused")
LOST = StoreTimeoutError("the reply was lost")


class Machine(RuleBasedStateMachine):
    """One publisher at a time, those that it replaced, and a reader."""

    make_place: Callable[[], Place]

    def __init__(self) -> None:
        super().__init__()
        self.place = self.make_place()
        self.given: dict[Version, int] = {}
        self.count = 0
        self.handles: list[Publication] = []
        self.publishers: list[StatePublisher] = []
        self.reader = Reader(Handle(self.place.raw), self.place, None, self.check_snapshot)

    @initialize()
    def begin(self) -> None:
        self.take_over()

    @rule()
    @precondition(lambda self: len(self.publishers) < 3)
    def take_over(self) -> None:
        """A learner starts; the earlier one does not know yet."""
        self.store = Handle(self.place.raw)
        self.handles = []
        self.publishers.append(
            StatePublisher(self.store, self.place.keys.namespace, heartbeat_s=3600.0)
        )

    @rule()
    def publish(self) -> None:
        """There is a new state, for which nobody waits."""
        self.count += 1
        publication = self.publishers[-1].publish({"rl_module/p": self.count})
        self.given[publication.version] = self.count
        self.handles.append(publication)

    @rule(which=st.integers(0, 7))
    @precondition(lambda self: self.handles)
    def wait(self, which: int) -> None:
        """Who waits for a version finds it, or a newer one, in the next poll."""
        publication = self.handles[which % len(self.handles)]
        version = publication.wait(WAIT)
        assert version >= publication.version
        self.reader.refresh()
        assert self.reader.last is not None
        assert self.reader.last >= version

    @rule()
    @precondition(lambda self: self.handles)
    def flush(self) -> None:
        """After a flush the newest state is there, and what it pushed out is not."""
        version = self.publishers[-1].flush(WAIT)
        assert version is not None
        assert version >= self.handles[-1].version
        self.reader.refresh()
        assert self.reader.last == version

    @rule(operation=st.sampled_from(WRITES), done=st.booleans(), times=st.integers(1, 3))
    def fault(self, operation: str, done: bool, times: int) -> None:
        """The next few calls fail, or are done and their replies lost."""
        (self.store.lose_reply if done else self.store.fail_next)(operation, LOST, times=times)

    @rule()
    @precondition(lambda self: self.handles)
    def outage(self) -> None:
        """The server goes, is noticed, and comes back; the cool-down is not sat out."""
        self.store.go_down(DOWN)
        self.publish()
        with pytest.raises(StoreError):
            self.handles[-1].wait(WAIT, fail_fast=True)
        self.store.come_back()
        self.flush()

    @rule()
    @precondition(lambda self: self.handles)
    def wipe(self) -> None:
        """The server lost everything while nothing was on its way; the next publish heals it."""
        self.publishers[-1].flush(WAIT)
        self.place.wipe()
        self.publish()
        self.flush()

    @rule()
    @precondition(lambda self: len(self.publishers) > 1)
    def the_older_one_wakes(self) -> None:
        """A learner that was replaced publishes: it is refused, and whoever waits is told."""
        older = self.publishers[-2]
        with pytest.raises(StalePublisherError):
            older.publish({"rl_module/p": -1}).wait(WAIT)

    def check_snapshot(self, reader: Reader, snapshot: Snapshot) -> None:
        assert snapshot["rl_module/p"] == self.given[snapshot.version]
        assert reader.last is None or snapshot.version > reader.last

    def teardown(self) -> None:
        self.store.heal()
        if self.handles:
            self.flush()
        for publisher in self.publishers:
            publisher.close()
        self.place.wipe()


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["memory", "valkey"])
def test_publishing(
    kind: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waited for a version is served by it or a newer one, through every fault: C2, C9, C34."""
    caplog.set_level(logging.CRITICAL, "redis_state_sync")
    monkeypatch.setattr(decisions, "LONGEST_DELAY_S", 0.005)  # Nobody is spared, all is repeated.
    with places(kind) as make_place:
        machine = type("Here", (Machine,), {"make_place": staticmethod(make_place)})
        examples = max(1, settings().max_examples // 4)
        run_state_machine_as_test(
            machine, settings=settings(max_examples=examples, stateful_step_count=20)
        )
