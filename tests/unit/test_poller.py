"""What a reader looks at, and what it looks at again because a store may lose what it had."""

from __future__ import annotations

import pytest

from redis_state_sync import Version, errors
from redis_state_sync.keys import Keys
from redis_state_sync.manifest import Manifest, Writer
from redis_state_sync.memory_store import MemoryStore
from redis_state_sync.poller import LOOK_EVERY_S, Poller
from redis_state_sync.records import Records
from redis_state_sync.testing import ScriptedStore
from tests.unit.states import Clock

KEYS = Keys("n")
V = Version


class Peek:
    """A poller over a store that the test fills by hand."""

    def __init__(self, store: ScriptedStore, writer: str | None = None) -> None:
        self.store = store
        self.clock = Clock()
        self.poller = Poller(store, KEYS, Records(KEYS, None), writer, self.clock)

    def add(self, version: Version, writer: str = "me") -> None:
        manifest = Manifest(Writer(writer, "h", 1), 0)
        self.store.append(KEYS, version, manifest.encode(), ttl_s=60, timeout=1)

    def lose(self) -> None:
        """The store comes back empty, or lets a failover take everything back."""
        assert isinstance(self.store.inner, MemoryStore)
        self.store.inner._values.clear()

    def ask(self) -> Version | None:
        """One poll; what it finds is dealt with."""
        version = self.poller.ask(1.0).version
        if version is not None:
            self.poller.deal_with(version)
        return version


@pytest.fixture
def peek(redis_state_scripted_store: ScriptedStore) -> Peek:
    return Peek(redis_state_scripted_store)


def test_a_claim_that_the_store_lost_hides_nothing(peek: Peek) -> None:
    """A reader that saw a take-over follows the older learner on if the store forgot the former."""
    peek.add(V(1, 1))
    assert peek.ask() == V(1, 1)
    peek.add(V(2, 0))
    assert peek.ask() is None
    peek.lose()
    peek.add(V(1, 2))
    peek.clock.now += LOOK_EVERY_S
    assert peek.ask() == V(1, 2)


def test_a_foreign_version_that_the_store_lost_hides_nothing(
    redis_state_scripted_store: ScriptedStore,
) -> None:
    """The same for another writer's states that a reader had looked past."""
    peek = Peek(redis_state_scripted_store, "me")
    peek.add(V(1, 1))
    assert peek.ask() == V(1, 1)
    peek.add(V(2, 1), "other")
    assert peek.ask() is None
    peek.lose()
    peek.add(V(1, 2))
    peek.clock.now += LOOK_EVERY_S
    assert peek.ask() == V(1, 2)


def test_what_was_taken_is_never_taken_again(peek: Peek) -> None:
    """A store that lost versions is reported as behind, and takes no reader back: C10, C19."""
    for number in (1, 2):
        peek.add(V(1, number))
    assert peek.ask() == V(1, 2)
    peek.lose()
    peek.add(V(1, 1))
    for _ in range(3):
        peek.clock.now += LOOK_EVERY_S
        choice = peek.poller.ask(1.0)
        assert (choice.version, choice.behind) == (None, True)
    peek.add(V(1, 3))
    peek.clock.now += LOOK_EVERY_S
    choice = peek.poller.ask(1.0)
    assert (choice.version, choice.behind) == (V(1, 3), False)


def test_an_emptied_store_is_behind(peek: Peek) -> None:
    """A namespace that vanished while it was read is reported, one that never was is not: C17."""
    assert not peek.poller.ask(1.0).behind
    peek.add(V(1, 1))
    assert peek.ask() == V(1, 1)
    peek.lose()
    peek.clock.now += LOOK_EVERY_S
    assert peek.poller.ask(1.0).behind


def test_one_round_trip_unless_there_is_news(peek: Peek) -> None:
    """A poll that finds nothing new is one question, whether it looks at the top or not."""
    peek.add(V(1, 1))
    assert peek.ask() == V(1, 1)
    for seconds in (0.0, LOOK_EVERY_S, 0.0, LOOK_EVERY_S):
        peek.clock.now += seconds
        before = peek.store.calls["newest"]
        assert peek.ask() is None
        assert peek.store.calls["newest"] == before + 1


def test_a_look_that_fails_is_tried_again(peek: Peek) -> None:
    """An error while looking at the top is the poll's error, and nothing is forgotten."""
    peek.add(V(1, 1))
    assert peek.ask() == V(1, 1)
    peek.clock.now += LOOK_EVERY_S
    peek.store.fail_next("newest", errors.StoreTimeoutError("no answer"))
    with pytest.raises(errors.StoreTimeoutError):
        peek.ask()
    assert peek.ask() is None
    peek.add(V(1, 2))
    assert peek.ask() == V(1, 2)


def test_reopen(peek: Peek) -> None:
    """A receiver that was changed from outside may take its version once more, no older one."""
    for number in (1, 2):
        peek.add(V(1, number))
    assert peek.ask() == V(1, 2)
    peek.poller.reopen(V(1, 2))
    assert peek.ask() == V(1, 2)
    assert peek.ask() is None
