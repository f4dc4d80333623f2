"""What a learner's observers hear beside that versions are published."""

from __future__ import annotations

import threading
from collections.abc import Callable

from redis_state_sync import Keyring, errors
from redis_state_sync.events import Claimed, Dropped, Event, Failed, Looked, Published, Recovered
from redis_state_sync.keys import Keys
from redis_state_sync.manifest import Manifest, Writer
from redis_state_sync.memory_store import MemoryStore
from redis_state_sync.testing import ScriptedStore
from redis_state_sync.version import Version
from tests.contract.servers import until
from tests.unit.states import WAIT, publishing, state


class Heard:
    """An observer that remembers what it heard, and on which threads."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.threads: set[str] = set()

    def __call__(self, event: Event, /) -> None:
        self.events.append(event)
        self.threads.add(threading.current_thread().name)

    def of(self, *kinds: type) -> list[Event]:
        return [event for event in self.events if isinstance(event, kinds)]

    def wait_for(self, true: Callable[[], object]) -> None:
        until(true, "what was to be heard", WAIT)


def test_taking_over_is_told_once_and_first() -> None:
    """The claim comes before the first version, on the publishing thread, and not again."""
    heard = Heard()
    with publishing(MemoryStore(), observers=[heard]) as publisher:
        for number in (1, 2):
            publisher.publish(state(number)).wait(WAIT)
        publisher.flush(WAIT)
        assert heard.events[0] == Claimed(publisher.generation)
    assert len(heard.of(Claimed)) == 1
    assert heard.threads == {"redis-state-sync-publish"}


def test_taking_over_is_told_without_a_version() -> None:
    """A learner that publishes nothing yet tells of its claim with its first look at the store."""
    heard = Heard()
    with publishing(MemoryStore(), observers=[heard], heartbeat_s=0.05) as publisher:
        heard.wait_for(lambda: heard.events)
        assert heard.events[0] == Claimed(publisher.generation)


def test_looks_are_told() -> None:
    """Each look after the store is told, with what it took; one that fails is a failure instead."""
    store, heard = ScriptedStore(MemoryStore()), Heard()
    with publishing(store, observers=[heard], heartbeat_s=0.02):
        heard.wait_for(lambda: len(heard.of(Looked)) > 3)
        store.go_down(errors.StoreUnavailableError("refused"))
        heard.wait_for(lambda: heard.of(Failed))
        looks = len(heard.of(Looked))
        heard.wait_for(lambda: len(heard.of(Failed)) > 1)
        assert len(heard.of(Looked)) == looks
    assert all(0 <= look.seconds < WAIT for look in heard.events if isinstance(look, Looked))


def test_taking_over_again_is_told() -> None:
    """After a forged version the learner claims once more, and says so before it publishes."""
    store, heard = MemoryStore(), Heard()
    keyring = Keyring(lambda: "a-key-of-a-test-that-is-long-enough-to-be-one")
    with publishing(store, observers=[heard], keyring=keyring) as publisher:
        publisher.publish(state(1)).wait(WAIT)
        first = publisher.generation
        forged = Manifest(Writer("someone", "host", 1), 0).encode()
        store.append(Keys("n"), Version(first + 5, 1), forged, ttl_s=60, timeout=WAIT)
        publisher.publish(state(2)).wait(WAIT)
        publisher.flush(WAIT)
        assert heard.of(Claimed) == [Claimed(first), Claimed(publisher.generation)]
        assert publisher.generation > first


def test_what_is_replaced_is_told() -> None:
    """All versions that were replaced while they waited are told of, once, and as many."""
    store, heard = ScriptedStore(MemoryStore()), Heard()
    with publishing(store, observers=[heard]) as publisher:
        for again in (1, 2):
            with store.paused("put_blobs"):
                publisher.publish(state(10 * again))
                store.wait_for_calls("put_blobs", 2 * again - 1)
                for number in range(1, 6):
                    publisher.publish(state(10 * again + number))
            publisher.flush(WAIT)
            assert publisher.stats.dropped == 4 * again
    assert heard.of(Dropped) == [Dropped(4)] * 2
    assert len(heard.of(Published)) == 4


def test_an_end_of_trouble_is_told() -> None:
    """When the store does again what it was asked, observers hear it: by a look, too."""
    store, heard = ScriptedStore(MemoryStore()), Heard()
    with publishing(store, observers=[heard], heartbeat_s=0.05) as publisher:
        publisher.publish(state(1)).wait(WAIT)
        store.go_down(errors.StoreUnavailableError("refused"))
        heard.wait_for(lambda: heard.of(Failed))
        store.come_back()
        heard.wait_for(lambda: heard.of(Recovered))
        failed = heard.of(Failed)
        assert heard.of(Recovered) == [Recovered("heartbeat")]
        assert heard.events.index(failed[-1]) < heard.events.index(Recovered("heartbeat"))
        publisher.publish(state(2)).wait(WAIT)
    assert len(heard.of(Recovered)) == 1


def test_no_trouble_no_end_of_it() -> None:
    """A learner that never failed has nothing to recover from."""
    heard = Heard()
    with publishing(MemoryStore(), observers=[heard], heartbeat_s=0.02) as publisher:
        for number in range(5):
            publisher.publish(state(number)).wait(WAIT)
    assert heard.of(Recovered, Failed) == []
