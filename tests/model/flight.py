"""Readers that act: they look ahead, refresh in flight, and reject, against a model of their parts.

Of each reader the model knows every component that it has, put in one by one as `changed` says. So
a component that was wrongly taken for known is missed at once.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from redis_state_sync import ApplyError, Snapshot
from redis_state_sync.components import is_weights
from redis_state_sync.events import Event, Fetched
from redis_state_sync.version import Version
from tests.model.machine import LOST, Handle, Machine, Reader, index
from tests.model.places import Place

TODO = [
    *("publish", "publish weights", "publish counters", "look ahead", "look ahead"),
    *("in flight", "in flight", "refresh", "reject in flight", "reject", "forget"),
    *("prefetch", "do not prefetch", "no answer", "no blobs", "lose the newest"),
]


class ActingReader(Reader):
    """A reader, and what it is made of."""

    def __init__(self, store: Handle, place: Place, writer: str | None, checks: Any) -> None:
        super().__init__(store, place, writer, checks)
        self.has: dict[str, Any] = {}
        """What the receiver has, and the subscriber knows that it has."""
        self.half: Version | None = None
        """Of this version it has the weights alone."""
        self.rejected: set[Version] = set()
        self.fetched: set[Version] = set()
        self.fetched_twice = False
        self.subscriber._reports._observers = (self.observe,)
        self.prefetch(on=writer is None)

    def prefetch(self, *, on: bool) -> None:
        """Whether its thread would look. It is never started: `look_ahead` takes its place."""
        self.subscriber._prefetcher._on = on

    def observe(self, event: Event) -> None:
        if isinstance(event, Fetched):
            self.fetched_twice |= event.version in self.fetched
            self.fetched.add(event.version)

    @property
    def prefetches(self) -> bool:
        return self.subscriber._prefetcher.is_on

    @property
    def ahead(self) -> Version | None:
        ahead = self.subscriber._arrivals.ahead
        return None if ahead is None else ahead.version

    def refresh(self, *, reject: bool = False) -> None:
        before, held = self.ahead, self.last
        seen: list[Version] = []

        def apply(snapshot: Snapshot) -> None:
            seen.append(snapshot.version)
            half = snapshot.version == self.half
            if half:
                assert not any(map(is_weights, snapshot.changed)), "weights are there already"
                assert snapshot.version == held
            else:
                self._checks(self, snapshot)
            self._expect_changed(snapshot, set(snapshot))
            if reject:
                self._reject(snapshot, half)
            self.has = {name: snapshot[name] for name in snapshot.changed} | {
                name: self.has[name] for name in snapshot if name not in snapshot.changed
            }
            assert self.has == dict(snapshot)
            self.last, self.forgot, self.half = snapshot.version, False, None

        self.now += 10.0  # No cool-down is left.
        done = self.subscriber.refresh(apply)
        assert len(seen) <= 1, "one refresh applies one version"
        assert (done is not None) == (bool(seen) and not reject)
        if before is not None:
            assert seen, f"{before} was fetched, and not used"
            assert seen[0] >= before
        if not reject:
            assert self.half is None, f"{self.half} was not completed"
        assert self.ahead is None

    def refresh_in_flight(self, *, reject: bool = False) -> None:
        """Between two steps."""
        before, calls = self.ahead, self.store.calls.total()
        seen: list[Version] = []

        def apply(snapshot: Snapshot) -> None:
            seen.append(snapshot.version)
            self._checks(self, snapshot)
            self._expect_changed(snapshot, set(snapshot))
            if reject:
                self._reject(snapshot, half=False)
            for name in filter(is_weights, snapshot.changed):
                self.has[name] = snapshot[name]
            for name in filter(is_weights, snapshot):
                assert self.has[name] == snapshot[name]
            self.last, self.forgot, self.half = snapshot.version, False, snapshot.version

        self.now += 10.0
        done = self.subscriber.refresh_in_flight(apply)
        assert (done is not None) == (bool(seen) and not reject)
        if self.prefetches:
            assert seen == ([] if before is None else [before])
            assert self.store.calls.total() == calls, "what was prefetched costs no call"
        elif before is not None:
            assert seen
            assert seen[0] >= before
        assert self.ahead is None

    def look_ahead(self) -> None:
        """What the thread does."""
        before = self.ahead
        self.now += 10.0
        found = self.subscriber._look_ahead()
        assert self.subscriber._surprise is None
        assert (self.ahead is not None) if found else (self.ahead == before)
        if before is not None:
            assert self.ahead is not None, f"{before} was lost"
            assert self.ahead >= before

    def forget(self) -> None:
        """Its state was changed from outside."""
        self.forgot = self.forgot or self.subscriber.held is not None
        self.subscriber.forget()
        self.has, self.half = {}, None
        self.fetched.clear()
        self.rejected.clear()  # All that is newer than what was held is looked at again.

    def adopt(self, version: Version) -> None:
        """It got a state by another way."""
        self.subscriber.adopt(version)
        self.has, self.half = {}, None
        held = self.subscriber.held
        assert held is not None
        assert held >= version
        assert self.forgot or self.last is None or held >= self.last
        self.last = held  # What was pushed to one that forgot may well be older.
        self.forgot = False

    def _expect_changed(self, snapshot: Snapshot, names: set[str]) -> None:
        differ = {n for n in names if n not in self.has or self.has[n] != snapshot[n]}
        assert snapshot.changed == differ

    def _reject(self, snapshot: Snapshot, half: bool) -> None:
        if half:
            self.half = None
        else:
            self.rejected.add(snapshot.version)
        raise ApplyError("does not fit")


class FlightMachine(Machine):
    """The machine, with readers that act."""

    def new_reader(self, writer: str | None) -> ActingReader:
        return ActingReader(self.handle(), self.place, writer, self.check_acting)

    def check_acting(self, reader: ActingReader, snapshot: Snapshot) -> None:
        self.check_snapshot(reader, snapshot)
        assert snapshot.version not in reader.rejected, f"{snapshot.version} was rejected before"

    @rule(follows=st.one_of(st.none(), index))
    @precondition(lambda self: len(self.readers) < 4)
    def add_reader(self, follows: int | None) -> None:
        """A reader of everyone's states, or of one learner's."""
        writer = None
        if follows is not None and self.learners:
            writer = self.learners[follows % len(self.learners)].announcer.writer.id
        self.readers.append(self.new_reader(writer))

    @rule(which=index)
    def restart_reader(self, which: int) -> None:
        """A reader dies, and another one takes its place."""
        old = self.readers.pop(which % len(self.readers))
        self.readers.append(self.new_reader(old.writer))

    def reader(self, which: int) -> Any:
        return self.readers[which % len(self.readers)]

    @rule(which=index, todo=st.lists(st.sampled_from(TODO), min_size=1, max_size=12))
    @precondition(lambda self: self.learners)
    def act(self, which: int, todo: list[str]) -> None:
        """A reader does one thing after the other, and so does its learner."""
        reader = self.reader(which)
        if self.outage_ends_in:
            owner = which
        else:
            learner = self.owner()
            owner = self.learners.index(learner)
        for number, what in enumerate(todo):
            match what:
                case "publish":
                    self.publish(owner, number % 2)
                case "publish counters" | "publish weights":
                    self.publish_some(owner, "counters" if "counters" in what else "rl_module/p")
                case "look ahead":
                    reader.look_ahead()
                case "in flight" | "reject in flight":
                    reader.refresh_in_flight(reject=what.startswith("reject"))
                case "refresh" | "reject":
                    reader.refresh(reject=what == "reject")
                case "prefetch" | "do not prefetch":
                    reader.prefetch(on=what == "prefetch")
                case "forget":
                    reader.forget()
                case "no answer":
                    reader.store.fail_next("newest", LOST)
                case "no blobs":
                    reader.store.fail_next("get_blobs", LOST)
                case "lose the newest":
                    if self.lossy and self.saved:
                        self.fail_over(1)
            self.what_is_ahead_is_newer()
            self.readers_hold_what_they_applied()

    act_more = act_still_more = act  # Three times as often.
    # What befalls learners is put to the test elsewhere.
    pin = unpin = time_passes = fault_of_a_learner = read = None

    def publish_some(self, which: int, component: str) -> None:
        """A learner publishes a version that differs by one component only."""
        learner = self.learners[which % len(self.learners)]
        if learner.refused or not learner.latest:
            return
        learner.number += 1
        learner.latest = {**learner.latest, component: learner.number}
        learner.pending = Version(learner.generation, learner.number)
        self.attempt(learner)

    @rule(which=index)
    def forget(self, which: int) -> None:
        """A reader's state is changed from outside."""
        self.reader(which).forget()

    @rule(which=index, newer=st.integers(-2, 1))
    @precondition(lambda self: self.legit)
    def adopt(self, which: int, newer: int) -> None:
        """A reader gets a state that was pushed: an older one, the newest, or one yet to come."""
        version = max(self.legit)
        if newer == 1:  # The learner pushes what it could not store.
            owners = [x for x in self.learners if x.generation == version.generation]
            if not owners:
                return
            owners[0].number += 1
            version = Version(version.generation, owners[0].number)
        elif -newer < len(self.legit):
            version = sorted(self.legit)[newer - 1]
        self.reader(which).adopt(version)

    @invariant()
    def what_is_ahead_is_newer(self) -> None:
        for reader in self.readers:
            assert not reader.fetched_twice
            ahead = reader.ahead
            if ahead is not None:
                assert ahead in self.legit
                assert ahead not in reader.rejected
                assert reader.subscriber.held is None or ahead > reader.subscriber.held
                # At most one more is kept: what is half applied.
                half = reader.subscriber._half_applied
                assert half is None or half.version == reader.half < ahead
