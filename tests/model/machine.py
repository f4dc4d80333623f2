"""Learners, readers and misfortune, one step at a time, against a model of what may be seen.

The model is small: which state each version was published with by a learner whom nobody had
replaced. Whatever a reader applies must be in there, and newer than what it had.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from redis_state_sync import History, Snapshot, StateSubscriber
from redis_state_sync.announcer import Announcer
from redis_state_sync.blobs import Blob
from redis_state_sync.codec import encode
from redis_state_sync.errors import (
    ApplyError,
    BlobMissingError,
    StalePublisherError,
    StoreError,
    StoreTimeoutError,
    StoreUnavailableError,
)
from redis_state_sync.manifest import Manifest, Writer
from redis_state_sync.testing import ScriptedStore
from redis_state_sync.version import Version
from tests.model.places import TTL_S, WAIT, Place

HISTORY = 2
DOWN = StoreUnavailableError("connection refused")
LOST = StoreTimeoutError("the reply was lost")
WRITES = ["newest", "append", "refresh", "put_blobs", "pins", "set_expiry", "give_notice", "drop"]
READS = ["newest", "get_blobs", "note_reader"]

State = dict[str, Any]
index = st.integers(0, 7)


class Handle(ScriptedStore):
    """One process's view of the store. Its clock grows with each look, so that runs are equal."""

    ticks = 0

    def time_ms(self, *, timeout: float) -> int:
        super().time_ms(timeout=timeout)
        Handle.ticks += 1
        return 1_000_000 + Handle.ticks

    def heal(self) -> None:
        """No planned fault is left."""
        for plans in (self._errors, self._lost, self._corrupt):
            plans.clear()


@dataclass
class Learner:
    """An announcer, and what it would publish next."""

    store: Handle
    announcer: Announcer
    number: int = 0
    latest: State = field(default_factory=dict)
    pending: Version | None = None
    refused: bool = False

    @property
    def generation(self) -> int:
        return self.announcer.generation


class Reader:
    """A subscriber, and what it applied last."""

    def __init__(self, store: Handle, place: Place, writer: str | None, checks: Any) -> None:
        self.store, self.writer = store, writer
        self.now = 1000.0
        self.last: Version | None = None
        self.forgot = False
        self._checks = checks
        self.subscriber = StateSubscriber(
            store,
            place.keys.namespace,
            writer=writer,
            name="reader",
            poll_timeout_s=WAIT,  # That a busy machine takes long is none of the faults.
            clock=lambda: self.now,
        )

    def refresh(self, *, reject: bool = False) -> None:
        def apply(snapshot: Snapshot) -> None:
            self._checks(self, snapshot)
            if reject:
                raise ApplyError("does not fit")
            self.last, self.forgot = snapshot.version, False

        self.now += 10.0  # No cool-down is left.
        self.subscriber.refresh(apply)


class Machine(RuleBasedStateMachine):
    """See the module."""

    make_place: Callable[[], Place]

    def __init__(self) -> None:
        super().__init__()
        Handle.ticks = 0
        self.place = self.make_place()
        self.legit: dict[Version, State] = {}
        self.learners: list[Learner] = []
        self.readers: list[Reader] = []
        self.handles: list[Handle] = []
        self.saved: list[Any] = []
        self.lossy = True
        self.outage_ends_in = 0
        self.learners_made = 0
        # Readers that saw a claim, or more, of this generation never go back behind it, though the
        # store may have lost it and an older learner may publish again.
        self.greatest = 0

    # ---------------------------------------------------------------- who takes part

    def handle(self) -> Handle:
        self.handles.append(Handle(self.place.raw))
        if self.outage_ends_in:
            self.handles[-1].go_down(DOWN)
        return self.handles[-1]

    @initialize(lossy=st.booleans())
    def begin(self, lossy: bool) -> None:
        """Half of all runs lose no data, so that pins and history are put to the test."""
        self.lossy = lossy
        self.take_over(None)
        self.add_reader(None)

    @rule(lost=st.sampled_from([None, "newest", "append"]))
    @precondition(lambda self: len(self.learners) < 4)
    def take_over(self, lost: str | None) -> None:
        """A learner starts, or fails to."""
        store = self.handle()
        if lost:
            store.lose_reply(lost, LOST)
        self.learners_made += 1
        before = self.place.top()
        try:
            announcer = Announcer(
                store,
                self.place.keys,
                Writer(f"w{self.learners_made}", "host", 1),
                history=HISTORY,
                ttl_s=TTL_S,
                probe_timeout_s=WAIT,
                transfer_timeout_s=WAIT,
            )
        except StoreError:
            return
        finally:
            self.greatest = max(self.greatest, self.place.top().generation)
        assert announcer.generation > before.generation
        self.learners.append(Learner(store, announcer))

    @rule(which=index)
    @precondition(lambda self: self.learners)
    def crash(self, which: int) -> None:
        """A learner is killed, with whatever it was doing half done."""
        del self.learners[which % len(self.learners)]

    @rule(follows=st.one_of(st.none(), index))
    @precondition(lambda self: len(self.readers) < 4)
    def add_reader(self, follows: int | None) -> None:
        """A reader of everyone's states, or of one learner's."""
        writer = None
        if follows is not None and self.learners:
            writer = self.learners[follows % len(self.learners)].announcer.writer.id
        self.readers.append(Reader(self.handle(), self.place, writer, self.check_snapshot))

    @rule(which=index)
    def restart_reader(self, which: int) -> None:
        """A reader dies, and another one takes its place."""
        old = self.readers.pop(which % len(self.readers))
        self.readers.append(Reader(self.handle(), self.place, old.writer, self.check_snapshot))

    # ---------------------------------------------------------------- what they do

    @rule(which=index, frozen=st.integers(0, 1))
    @precondition(lambda self: self.learners)
    def publish(self, which: int, frozen: int) -> None:
        """A learner has a new state; one that is still waiting is replaced."""
        learner = self.learners[which % len(self.learners)]
        if learner.refused:
            return
        learner.number += 1
        name = (learner.generation, learner.number) * 8
        learner.latest = {"rl_module/p": name, "counters": name, "rl_module/frozen": frozen}
        learner.pending = Version(learner.generation, learner.number)
        self.attempt(learner)

    @rule(which=index)
    @precondition(lambda self: self.learners)
    def heartbeat(self, which: int) -> None:
        """What the publisher's thread does while there is nothing new."""
        learner = self.learners[which % len(self.learners)]
        if learner.refused:
            return
        if learner.pending is not None:
            self.attempt(learner)
            return
        try:
            lost = learner.announcer.look_after()
        except StalePublisherError:
            self.refuse(learner)
        except StoreError:
            pass
        else:
            if lost:
                learner.number += 1
                learner.pending = Version(learner.generation, learner.number)
                self.attempt(learner)

    def attempt(self, learner: Learner) -> None:
        version, announcer = learner.pending, learner.announcer
        assert version is not None
        if self.lossy:
            self.saved.append(self.place.save())
        owner = self.place.top().generation <= learner.generation
        if owner:
            self.legit[version] = dict(learner.latest)
        try:
            blobs = {n: Blob(encode(v)) for n, v in learner.latest.items()}
            announcer.announce(version.number, blobs, None)
        except StalePublisherError:
            self.refuse(learner)
        except StoreError:
            pass
        else:
            assert owner, f"{version} was stored after a take-over"
            learner.pending = None
            try:
                announcer.retain()
            except StoreError:
                pass

    def refuse(self, learner: Learner) -> None:
        top = self.place.top()
        assert top.generation > learner.generation, f"refused although only {top} is there"
        learner.refused, learner.pending = True, None

    @rule(which=index, reject=st.sampled_from([False, False, False, True]))
    def read(self, which: int, reject: bool) -> None:
        """A reader refreshes; what it is offered may not fit it."""
        self.readers[which % len(self.readers)].refresh(reject=reject)

    @rule(which=index)
    def forget(self, which: int) -> None:
        """A reader's state is changed from outside."""
        reader = self.readers[which % len(self.readers)]
        reader.forgot = reader.forgot or reader.subscriber.held is not None
        reader.subscriber.forget()

    @rule(which=index, name=st.sampled_from(["a", "b"]))
    def pin(self, which: int, name: str) -> None:
        """Someone pins a version that is there."""
        states = self.stored_states()
        if states:
            try:
                self.history().pin(name, states[which % len(states)])
            except BlobMissingError:
                assert self.lossy

    @rule(name=st.sampled_from(["a", "b"]))
    def unpin(self, name: str) -> None:
        """Someone removes a pin."""
        if name in self.place.raw.pins(self.place.keys, timeout=WAIT):
            self.history().unpin(name)

    def history(self) -> History:
        return History(self.place.raw, self.place.keys.namespace, ttl_s=TTL_S, timeout_s=WAIT)

    # ---------------------------------------------------------------- what befalls them

    @rule(which=index, operation=st.sampled_from(WRITES), done=st.booleans())
    @precondition(lambda self: self.learners)
    def fault_of_a_learner(self, which: int, operation: str, done: bool) -> None:
        """A learner's next call fails, or is done and its reply is lost."""
        store = self.learners[which % len(self.learners)].store
        (store.lose_reply if done else store.fail_next)(operation, LOST)

    @rule(which=index, operation=st.sampled_from(READS), done=st.booleans())
    def fault_of_a_reader(self, which: int, operation: str, done: bool) -> None:
        """The same for a reader."""
        store = self.readers[which % len(self.readers)].store
        (store.lose_reply if done else store.fail_next)(operation, LOST)

    @rule(which=index, blob=index)
    def damage(self, which: int, blob: int) -> None:
        """A blob reaches one reader with a bit flipped."""
        digests = self.newest_digests()
        if digests:
            self.readers[which % len(self.readers)].store.corrupt(digests[blob % len(digests)])

    @rule(steps=st.integers(1, 6))
    @precondition(lambda self: not self.outage_ends_in)
    def outage(self, steps: int) -> None:
        """The server is gone for a while, and comes back with its data."""
        self.outage_ends_in = steps
        for handle in self.handles:
            handle.go_down(DOWN)

    @invariant()
    def outages_end(self) -> None:
        if self.outage_ends_in:
            self.outage_ends_in -= 1
            if not self.outage_ends_in:
                self.everything_works()

    def everything_works(self) -> None:
        self.outage_ends_in = 0
        for handle in self.handles:
            handle.come_back()

    @rule()
    @precondition(lambda self: self.lossy)
    def wipe(self) -> None:
        """The server lost everything."""
        self.place.wipe()

    @rule(back=st.integers(1, 4))
    @precondition(lambda self: self.lossy and self.saved)
    def fail_over(self, back: int) -> None:
        """A replica that lags takes the place of the primary; the last few writes are lost."""
        self.place.load(self.saved[max(0, len(self.saved) - back)])

    @rule(blob=index)
    @precondition(lambda self: self.lossy)
    def evict(self, blob: int) -> None:
        """One blob is evicted."""
        digests = self.newest_digests()
        if digests:
            self.place.lose_blob(digests[blob % len(digests)])

    @rule(seconds=st.sampled_from([TTL_S / 3, TTL_S / 2, 2 * TTL_S]))
    @precondition(lambda self: self.lossy)
    def time_passes(self, seconds: float) -> None:
        """Nobody does anything for long."""
        self.place.advance(seconds)

    # ---------------------------------------------------------------- what must hold

    def check_snapshot(self, reader: Reader, snapshot: Snapshot) -> None:
        version = snapshot.version
        assert version in self.legit, f"{version} was never published by an owner"
        assert dict(snapshot) == self.legit[version], f"{version} is not what was published"
        if reader.writer is not None:
            assert snapshot.manifest.writer.id == reader.writer
        if reader.last is not None:
            newer = version >= reader.last if reader.forgot else version > reader.last
            assert newer, f"went back from {reader.last} to {version}"

    @invariant()
    def readers_hold_what_they_applied(self) -> None:
        for reader in self.readers:
            assert reader.subscriber.held in ((None,) if reader.forgot else (reader.last,))

    @invariant()
    def everything_expires(self) -> None:
        keys = self.place.keys
        forever = {key for key, left in self.place.expiries().items() if left < 0}
        pinned = sorted(set(self.place.raw.pins(keys, timeout=WAIT).values()))
        records = self.place.raw.find(keys, pinned, timeout=WAIT).values()
        digests = {d for record in records for d in Manifest.decode(record).digests()}
        assert forever <= {keys.pins, keys.pinned, *map(keys.blob, digests)}

    @invariant()
    def pinned_versions_are_complete(self) -> None:
        if self.lossy:
            return
        pinned = set(self.place.raw.pins(self.place.keys, timeout=WAIT).values())
        stored = self.entries()
        assert pinned <= stored.keys()
        digests = [d for version in pinned for d in stored[version].digests()]
        assert None not in self.place.raw.get_blobs(self.place.keys, digests, timeout=WAIT)

    @rule()
    def settle(self) -> None:
        """Every fault ends: then the newest learner's state is what all readers get."""
        self.everything_works()
        for handle in self.handles:
            handle.heal()
        owner = self.owner()
        others = [learner for learner in self.learners if learner is not owner]
        for _ in range(3):  # look, publish again, look: all is well
            self.heartbeat(self.learners.index(owner))
        assert owner.pending is None
        assert max(self.entries()) == owner.announcer.last.version
        digests = self.newest_digests()
        assert None not in self.place.raw.get_blobs(self.place.keys, digests, timeout=WAIT)
        for learner in others:
            self.heartbeat(self.learners.index(learner))
            assert learner.refused
        self.publish(self.learners.index(owner), 0)
        newest = Version(owner.generation, owner.number)
        for reader in self.readers:
            if reader.writer in (None, owner.announcer.writer.id):
                reader.refresh()
                assert reader.subscriber.held == newest
        pinned = set(self.place.raw.pins(self.place.keys, timeout=WAIT).values())
        entries = self.entries()
        assert newest in entries
        assert not any(version.is_claim for version in entries)
        assert len(entries.keys() - pinned) <= HISTORY

    def owner(self) -> Learner:
        """The newest learner alive, if nobody ever replaced it; else a new one."""
        alive = [x for x in self.learners if not x.refused and x.generation >= self.greatest]
        if not alive:
            self.learners = self.learners[:3]
            self.take_over(None)
            alive = self.learners[-1:]
        owner = max(alive, key=lambda learner: learner.generation)
        if not owner.latest:
            self.publish(self.learners.index(owner), 0)
        return owner

    def teardown(self) -> None:
        if self.readers:
            self.settle()
        self.place.wipe()

    # ---------------------------------------------------------------- looking, past all faults

    def entries(self) -> dict[Version, Manifest]:
        found = self.place.raw.newest(self.place.keys, count=1000, timeout=WAIT)
        return {entry.version: Manifest.decode(entry.manifest) for entry in found}

    def stored_states(self) -> list[Version]:
        return sorted(version for version in self.entries() if not version.is_claim)

    def newest_digests(self) -> list[str]:
        states = self.stored_states()
        return list(self.entries()[states[-1]].digests()) if states else []
