"""Readers that rely on the server's word: no order of events hides a version from them."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from redis_state_sync.errors import StoreError
from redis_state_sync.keys import Keys
from redis_state_sync.manifest import Manifest, Writer
from redis_state_sync.poller import LOOK_EVERY_S, Poller
from redis_state_sync.records import Records
from redis_state_sync.version import Version
from tests.model.tracking import Server, TrackedStore

KEYS = [Keys("a"), Keys("b")]
SECONDS = 5.0
which = st.integers(0, 1)
readers = st.integers(0, 3)


class Machine(RuleBasedStateMachine):
    """Readers of two namespaces over one store, and whatever may come between."""

    def __init__(self) -> None:
        super().__init__()
        self.server = Server()
        self.store = TrackedStore(self.server)
        self.now = 1000.0
        self.top = [Version(1, 0), Version(1, 0)]
        self.keys = [KEYS[0], KEYS[0], KEYS[0], KEYS[1]]
        self.pollers = [
            Poller(self.store, keys, Records(keys, None), writer, lambda: self.now, tracked=True)
            for keys, writer in zip(self.keys, (None, None, "me", None), strict=True)
        ]

    # ---------------------------------------------------------------- what others do

    def next_version(self, ns: int, writer: str, claim: bool) -> tuple[Version, bytes]:
        top = self.top[ns]
        self.top[ns] = Version(top.generation + claim, 0 if claim else top.number + 1)
        return self.top[ns], Manifest(Writer(writer, "h", 1), 0).encode()

    def publish(self, ns: int, writer: str = "me", claim: bool = False) -> None:
        self.server.add(KEYS[ns].versions.encode(), *self.next_version(ns, writer, claim))

    @rule(ns=which, writer=st.sampled_from(["me", "me", "other"]), claim=st.booleans())
    def published(self, ns: int, writer: str, claim: bool) -> None:
        """A learner publishes, or takes over."""
        self.publish(ns, writer, claim)

    @rule(ns=which)
    def published_on_this_handle(self, ns: int) -> None:
        """The same from this very process, over the same connection."""
        version, manifest = self.next_version(ns, "me", False)
        try:
            self.store.append(KEYS[ns], version, manifest, ttl_s=60, timeout=SECONDS)
        except StoreError:
            pass

    @rule(ns=which, times=st.integers(1, 2))
    def published_during_the_next_poll(self, ns: int, times: int) -> None:
        """Before and behind the moment at which a poll is answered, while it is under way."""
        self.server.around = [lambda: None] * (2 - times) + [lambda: self.publish(ns)] * times

    @rule(ns=which, happens=st.sampled_from(["publish", "kill", "close", "poll", "look"]))
    def between_mark_and_poll(self, ns: int, happens: str) -> None:
        """Another thread comes in between."""
        self.store.behind_mark = {
            "publish": lambda: self.publish(ns),
            "kill": self.killed,
            "close": self.store.close,
            "poll": lambda: self.poll(3 * ns),
            "look": lambda: self.pollers[3 * ns].unchanged() and None,
        }[happens]

    # ---------------------------------------------------------------- what befalls them

    @rule(count=st.sampled_from([1, 5, 30, 1 << 20]))
    def arrives(self, count: int) -> None:
        """Some of what the server sent arrives, perhaps half a message."""
        if self.store.wire is not None:
            self.store.wire.deliver(count)

    @rule(size=st.sampled_from([1, 7, 40, 1 << 16]))
    def pieces(self, size: int) -> None:
        """Replies come in pieces of this size from now on."""
        self.server.burst = size

    @rule(seconds=st.sampled_from([0.1, 0.6, LOOK_EVERY_S]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def killed(self) -> None:
        """The server ends the connection; the end is under way."""
        if self.store.wire is not None:
            self.server.hang_up(self.store.wire)

    @rule()
    def closed(self) -> None:
        """This process closes the connection."""
        self.store.close()

    @rule(ns=which)
    def forgets(self, ns: int) -> None:
        """The server remembers no longer who read a key, or the key expired and came back."""
        self.server.changed(KEYS[ns].versions.encode())

    @rule()
    def flushed(self) -> None:
        """Everything goes."""
        self.server.flush()

    @rule(ns=which)
    def failed_over(self, ns: int) -> None:
        """Another server takes its place, which lacks the last version."""
        self.server.versions.get(KEYS[ns].versions.encode(), [])[-1:] = []
        for wire in list(self.server.wires):
            self.server.hang_up(wire)

    @rule(may=st.booleans())
    def rights(self, may: bool) -> None:
        """The user loses or gets the right to have reads tracked."""
        self.server.may_track = may

    @rule(mute=st.booleans())
    def silence(self, mute: bool) -> None:
        """From now on nothing that is waited for comes in time, or all does."""
        self.server.mute = mute

    # ---------------------------------------------------------------- what readers do

    @rule(reader=readers)
    def refresh(self, reader: int) -> None:
        """As a subscriber does it."""
        if not self.pollers[reader].unchanged():
            self.poll(reader)

    @rule(reader=readers, apply=st.booleans())
    def poll(self, reader: int, apply: bool = True) -> None:
        """Whatever is known; what is found may be fetched in vain."""
        poller = self.pollers[reader]
        try:
            version = poller.ask(SECONDS).version
        except StoreError:
            return
        if version is not None and apply:
            poller.deal_with(version)

    @rule(order=st.permutations(range(4)))
    def all_refresh(self, order: list[int]) -> None:
        """Often enough for each to have what there is, and the server's word for it."""
        for _ in range(3):
            for reader in order:
                self.refresh(reader)

    @rule(reader=readers, ahead=st.integers(-1, 1))
    def adopt(self, reader: int, ahead: int) -> None:
        """A reader gets a version by another way, perhaps one that the store does not have yet."""
        top = self.top[self.keys[reader] is KEYS[1]]
        self.pollers[reader].deal_with(Version(top.generation, max(1, top.number + ahead)))

    @rule(reader=readers)
    def reopen(self, reader: int) -> None:
        """A reader's state was changed from outside."""
        poller = self.pollers[reader]
        if poller._dealt_with is not None and poller._dealt_with.number:
            poller.reopen(poller._dealt_with)

    # ---------------------------------------------------------------- what must hold

    @invariant()
    def nothing_is_hidden(self) -> None:
        """Who need not ask has all there is, unless the word of it is still under way."""
        planned, self.store.behind_mark = self.store.behind_mark, None
        for reader in range(4):
            if not self.pollers[reader].unchanged():
                continue
            key = self.keys[reader].versions.encode()
            newer = [
                version
                for version, manifest in self.server.versions.get(key, [])
                if self.wanted(reader, version, manifest)
            ]
            wire = self.store.wire
            assert wire is not None
            assert not newer or wire.under_way(key), f"reader {reader} will not learn of {newer}"
        self.store.behind_mark = planned

    def wanted(self, reader: int, version: Version, manifest: bytes) -> bool:
        floor, writer = self.pollers[reader].floor, "me" if reader == 2 else None
        return (
            not version.is_claim
            and (floor is None or version > floor)
            and writer in (None, Manifest.decode(manifest).writer.id)
        )

    @rule(reader=readers)
    def calm(self, reader: int) -> None:
        """While nothing happens, a few polls are enough: then the reader asks no more."""
        self.server.mute, self.server.around, self.store.behind_mark = False, [], None
        self.server.may_track = True
        self.store.close()
        for _ in range(4):
            self.poll(reader)
            if self.store.wire is not None:
                self.store.wire.deliver(1 << 20)
        asked = self.server.asked
        self.refresh(reader)
        self.refresh(reader)
        assert self.server.asked == asked
        assert self.pollers[reader].unchanged()
        self.now += LOOK_EVERY_S
        assert not self.pollers[reader].unchanged()
        self.now -= LOOK_EVERY_S


@pytest.mark.timeout(3600)
def test_tracking() -> None:
    """Whatever happens in whatever order, no reader that asks no more misses a version: C2."""
    run_state_machine_as_test(
        Machine,
        settings=settings(max_examples=4 * settings().max_examples, stateful_step_count=40),
    )
