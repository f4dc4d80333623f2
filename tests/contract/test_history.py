"""Old versions: listed, fetched, pinned, rolled back to; over every store."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import numpy as np
import pytest

from redis_state_sync import (
    History,
    Keyring,
    LearnerAliveError,
    SettingsError,
    Snapshot,
    StalePublisherError,
    StatePublisher,
    StateSubscriber,
    UnknownVersionError,
    Version,
    roll_back,
)
from redis_state_sync.errors import BlobMissingError, SignatureError, StoreError
from redis_state_sync.keys import Keys
from redis_state_sync.memory_store import MemoryStore
from redis_state_sync.store import Store
from redis_state_sync.testing import ScriptedStore
from tests.contract.conftest import WAIT, Backend, run
from tests.contract.servers import until

FOREVER = -1.0
KEY = "k" * 32


def state(number: int) -> dict[str, Any]:
    return {
        "rl_module/p": {"w": np.full(500, number, np.float32)},
        "rl_module/frozen": {"w": np.arange(100.0)},
        "counters": {"steps": number},
    }


def number_in(snapshot: Snapshot) -> int:
    weights, steps = snapshot["rl_module/p"]["w"], snapshot["counters"]["steps"]
    assert (weights == steps).all()
    assert (snapshot["rl_module/frozen"]["w"] == np.arange(100.0)).all()
    return int(steps)


@contextmanager
def learner(backend: Backend, keys: Keys, **settings: Any) -> Iterator[StatePublisher]:
    settings = {"history": 2, "heartbeat_s": 0.05, **settings}
    with closing(StatePublisher(backend.open(), keys.namespace, **settings)) as publisher:
        yield publisher


def published(publisher: StatePublisher, number: int) -> Version:
    """Stores a state; what it pushes out is dropped when this returns."""
    version = publisher.publish(state(number)).wait(WAIT)
    publisher.flush(WAIT)
    return version


def history_of(backend: Backend, keys: Keys, **settings: Any) -> History:
    return History(backend.open(), keys.namespace, timeout_s=WAIT, **settings)


def lose(store: Store, key: str) -> None:
    """One key expires or is deleted."""
    if isinstance(store, MemoryStore):
        store._values.pop(key, None)
    else:
        run(store, ("DEL", key))


def lasting(backend: Backend, keys: Keys) -> set[str]:
    """The keys that never expire."""
    return {key for key, left in backend.expiries(keys).items() if left < 0}


def kept(keys: Keys, *snapshots: Snapshot) -> set[str]:
    """The keys that these pinned versions need."""
    blobs = {keys.blob(d) for snapshot in snapshots for d in snapshot.manifest.digests()}
    return {keys.pins, keys.pinned, *blobs}


def test_listing(backend: Backend, keys: Keys) -> None:
    """Every state is listed, newest first, with its pins; claims are none."""
    history = history_of(backend, keys)
    assert history.versions() == []
    with learner(backend, keys, history=9) as publisher:
        assert history.versions() == []
        versions = [published(publisher, n) for n in range(3)]
        history.pin("b", versions[1])
        history.pin("a/ä", str(versions[1]))
        history.pin("c", "newest")
    stored = history.versions()
    assert [s.version for s in stored] == versions[::-1]
    assert [s.pins for s in stored] == [("c",), ("a/ä", "b"), ()]
    assert history.pins() == {"b": versions[1], "a/ä": versions[1], "c": versions[2]}
    assert all(s.manifest and set(s.manifest.components) == set(state(0)) for s in stored)


def test_any_version_is_fetched(backend: Backend, keys: Keys) -> None:
    """A version is fetched by itself, as text, by a pin's name, or as the newest."""
    history = history_of(backend, keys)
    with learner(backend, keys, history=9) as publisher:
        versions = [published(publisher, n) for n in range(4)]
        history.pin("two", versions[2])
        asked: list[tuple[Version | str, int]] = [
            (versions[0], 0), (str(versions[1]), 1), ("two", 2), ("newest", 3), (versions[0], 0),
        ]  # fmt: skip
        for which, number in asked:
            snapshot = history.fetch(which)
            assert (snapshot.version, number_in(snapshot)) == (versions[number], number)


def test_what_is_unknown(backend: Backend, keys: Keys) -> None:
    """A version or pin that there is not is an error that names those that there are."""
    history = history_of(backend, keys)
    for which in ("newest", "best", Version(1, 1)):
        with pytest.raises(UnknownVersionError, match="there are, newest first: none"):
            history.fetch(which)
    with learner(backend, keys, history=9) as publisher:
        versions = [published(publisher, n) for n in range(2)]
        history.pin("best", versions[0])
        claim = Version(versions[0].generation, 0)
        for which in ("bets", "1-1", Version(1, 1), claim, "5-", str(claim)):
            with pytest.raises(UnknownVersionError) as raised:
                history.fetch(which)
            expected = f"newest first: {versions[1]}, {versions[0]} (best)"
            assert expected in str(raised.value)
        with pytest.raises(UnknownVersionError, match="has no pin 'bets'"):
            history.unpin("bets")
        with pytest.raises(UnknownVersionError):
            history.pin("other", "bets")
        assert history.pins() == {"best": versions[0]}


@pytest.mark.parametrize("name", ["", "newest", "5-1", "!resend", " a", "a b", "a\n", "x" * 201, 5])
def test_names_of_pins(name: Any) -> None:
    """What could be taken for a version or a request is no name of a pin."""
    with pytest.raises(SettingsError, match="pin name"):
        History(MemoryStore(), "n").pin(name)


def test_a_pinned_version_stays_and_never_expires(backend: Backend, keys: Keys) -> None:
    """Whatever a learner publishes and refreshes, a pinned version stays as it is: C104."""
    history = history_of(backend, keys)
    with learner(backend, keys) as publisher:
        first = published(publisher, 1)
        history.pin("best", first)
        for number in range(2, 7):
            published(publisher, number)
            time.sleep(0.06)  # A heartbeat refreshes in between.
        snapshot = history.fetch("best")
        assert number_in(snapshot) == 1
        # The frozen module is the newest version's, too.
        assert lasting(backend, keys) == kept(keys, snapshot)
        history.unpin("best")
        published(publisher, 7)
        with pytest.raises(UnknownVersionError):
            history.fetch(first)
        until(lambda: lasting(backend, keys) == set(), "an expiry for all that is left")
    assert len(history.versions()) == 2


def test_a_pin_outlives_everything_else(backend: Backend, keys: Keys) -> None:
    """When the namespace expired, what is pinned is there; a new learner leaves it whole: C104."""
    history = history_of(backend, keys)
    with learner(backend, keys) as publisher:
        history.pin("best", published(publisher, 1))
        published(publisher, 2)
    keep = kept(keys, history.fetch("best"))
    for key in backend.expiries(keys).keys() - keep:
        lose(backend.open(), key)
    assert [s.pins for s in history.versions()] == [("best",)]
    assert number_in(history_of(backend, keys).fetch("best")) == 1
    assert StateSubscriber(backend.open(), keys.namespace).fetch(timeout=WAIT) is None
    with learner(backend, keys) as publisher:
        published(publisher, 2)
        # From now on nothing that the learner keeps needs the frozen module.
        for number in range(3, 7):
            state_without = {"counters": {"steps": number}}
            publisher.publish(state_without, remove=["rl_module/frozen"]).wait(WAIT)
            publisher.flush(WAIT)
        assert number_in(history_of(backend, keys).fetch("best")) == 1
        assert lasting(backend, keys) == keep
        history.pin("again", "best")
        history.unpin("best")
        assert number_in(history_of(backend, keys).fetch("again")) == 1
        history.unpin("again")
        assert lasting(backend, keys) == set()


def test_a_blob_that_is_sent_again_does_not_expire(backend: Backend, keys: Keys) -> None:
    """A pinned blob that was lost or damaged is sent again by its learner, and lasts again."""
    history = history_of(backend, keys)
    with learner(backend, keys) as publisher:
        history.pin("best", published(publisher, 1))
        keep = kept(keys, history.fetch("best"))
        published(publisher, 2)
        frozen = keys.blob(
            history.find("newest")[1].components["rl_module/frozen"].pieces[0].digest
        )
        lose(backend.open(), frozen)
        until(lambda: frozen in lasting(backend, keys), "the blob, for ever")
        assert number_in(history_of(backend, keys).fetch("best")) == 1
        assert lasting(backend, keys) == keep


def test_names_share_a_version(backend: Backend, keys: Keys) -> None:
    """A version goes with its last name; a name that moves on takes its keeping along."""
    history = history_of(backend, keys)
    with learner(backend, keys) as publisher:
        first = published(publisher, 1)
        history.pin("a", first)
        history.pin("b", first)
        for number in range(2, 6):
            published(publisher, number)
        assert history.unpin("a") == first
        assert number_in(history.fetch("b")) == 1
        last = published(publisher, 6)
        assert history.pin("b") == last
        assert lasting(backend, keys) == kept(keys, history.fetch("b"))
        published(publisher, 7)
        with pytest.raises(UnknownVersionError):
            history.fetch(first)
        assert history.pins() == {"b": last}


@pytest.mark.parametrize("operation", ["remove_pin", "find", "forget_record", "set_expiry"])
def test_others_pin_while_one_unpins(backend: Backend, keys: Keys, operation: str) -> None:
    """Whoever pins a version, or one like it, while its last name is taken away, keeps it whole."""
    other, scripted = history_of(backend, keys), ScriptedStore(backend.open())
    slow = History(scripted, keys.namespace, timeout_s=WAIT)
    with learner(backend, keys, history=9, heartbeat_s=3600) as publisher:
        first, second = published(publisher, 1), published(publisher, 2)
    for version in (first, second):
        slow.pin("a", first)
        calls = scripted.calls[operation]
        unpinning = threading.Thread(target=slow.unpin, args=("a",))
        with scripted.paused(operation):
            unpinning.start()
            scripted.wait_for_calls(operation, calls + 1)
            other.pin("b", version)
        unpinning.join(WAIT)
        assert not unpinning.is_alive()
        assert other.pins() == {"b": version}
        assert lasting(backend, keys) == kept(keys, other.fetch("b"))
        other.unpin("b")
        assert lasting(backend, keys) == set()


def test_an_incomplete_version_can_not_be_pinned(backend: Backend, keys: Keys) -> None:
    """Pinning what is not whole is refused, and everything is as it was before."""
    history = history_of(backend, keys)
    with learner(backend, keys, heartbeat_s=3600) as publisher:
        good, bad = published(publisher, 1), published(publisher, 2)
        history.pin("best", good)
        digest = history.find(bad)[1].components["rl_module/p"].pieces[0].digest
        lose(backend.open(), keys.blob(digest))
        for name in ("best", "other"):
            with pytest.raises(BlobMissingError, match="1 of its 3 blobs"):
                history.pin(name, bad)
        assert history.pins() == {"best": good}
        assert lasting(backend, keys) == kept(keys, history.fetch("best"))


@pytest.mark.parametrize("step", ["give_notice", "pins", "newest", "drop"])
def test_who_drops_and_who_pins_see_each_other(backend: Backend, keys: Keys, step: str) -> None:
    """Wherever a learner is with dropping what is pinned, it stays whole, or unpinned: C104."""
    history = history_of(backend, keys)
    scripted = ScriptedStore(backend.open())
    with closing(
        StatePublisher(scripted, keys.namespace, history=1, heartbeat_s=3600)
    ) as publisher:
        doomed = published(publisher, 1)
        calls = scripted.calls[step]
        outcome: list[Any] = []
        pinning = threading.Thread(target=try_to_pin, args=(history, "p", doomed, outcome))
        with scripted.paused(step):
            publisher.publish(state(2)).wait(WAIT)
            scripted.wait_for_calls(step, calls + 1)
            pinning.start()
            # Named, and (but for the first step) waiting for the learner.
            until(lambda: history.pins().get("p") == doomed, "the pin")
            if step == "give_notice":
                pinning.join(WAIT)
        publisher.flush(WAIT)
        pinning.join(WAIT)
        assert not pinning.is_alive()
    assert backend.open().notice(keys, timeout=WAIT) == set()
    if step in ("give_notice", "pins"):  # The learner looked later, and left it.
        assert outcome == [doomed]
        assert number_in(history_of(backend, keys).fetch("p")) == 1
        assert lasting(backend, keys) == kept(keys, history.fetch("p"))
    else:
        assert isinstance(outcome[0], BlobMissingError)
        assert history.pins() == {}
        assert lasting(backend, keys) == set()
    assert number_in(history.fetch("newest")) == 2


def try_to_pin(history: History, name: str, version: Version, outcome: list[Any]) -> None:
    try:
        outcome.append(history.pin(name, version))
    except Exception as error:
        outcome.append(error)


def test_a_learner_that_died_while_dropping(backend: Backend, keys: Keys) -> None:
    """What a dead learner was about to drop can be pinned when its notice is over."""
    history = history_of(backend, keys)
    with learner(backend, keys, heartbeat_s=3600) as publisher:
        version = published(publisher, 1)
    backend.open().give_notice(keys, [version], ttl_s=1, timeout=WAIT)
    assert history.pin("p", version) == version
    assert backend.open().notice(keys, timeout=WAIT) == set()


@pytest.mark.not_for("fake-tcp")
def test_pins_against_a_busy_learner(backend: Backend, keys: Keys) -> None:
    """Whoever pins while a learner publishes gets a version that is whole, or no pin: C104."""
    problems: list[BaseException] = []
    pinned: dict[str, Version] = {}
    refused: list[Exception] = []

    def pin(who: int) -> None:
        history = history_of(backend, keys)
        try:
            for number in range(20):
                name, oldest = f"{who}/{number}", history.versions()[-1].version
                try:
                    pinned[name] = history.pin(name, oldest)
                except (BlobMissingError, UnknownVersionError) as error:
                    refused.append(error)
                if number % 3 == 2 and pinned:
                    history.unpin(pinned.popitem()[0])
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=pin, args=(who,)) for who in range(2)]
    with learner(backend, keys, history=2, heartbeat_s=0.01) as publisher:
        published(publisher, 0)
        for thread in threads:
            thread.start()
        number = 0
        while any(thread.is_alive() for thread in threads):
            number += 1
            published(publisher, number)
        published(publisher, number + 1)
    assert problems == []
    history = history_of(backend, keys)
    assert history.pins() == pinned
    assert len(pinned) + len(refused) > 10
    snapshots = [history.fetch(name) for name in pinned]
    for snapshot in snapshots:
        number_in(snapshot)
    assert lasting(backend, keys) == kept(keys, *snapshots)


def test_rolling_back(backend: Backend, keys: Keys) -> None:
    """An old state is a new version of a new generation: readers and the next learner take it."""
    history = history_of(backend, keys)
    reader = StateSubscriber(backend.open(), keys.namespace, poll_timeout_s=WAIT)
    with learner(backend, keys, history=9) as publisher:
        versions = [published(publisher, n) for n in range(1, 4)]
        publisher.publish(state(4), weights_seq_no=77).wait(WAIT)
    assert number_in(reader.fetch(timeout=WAIT) or history.fetch("newest")) == 4
    before = backend.expiries(keys).keys()
    new = roll_back(history, versions[1], watch_s=0.2)
    assert new > history.versions()[1].version
    assert new.generation > versions[-1].generation
    assert backend.expiries(keys).keys() == before  # No blob was sent, no pin is left.
    assert lasting(backend, keys) == set()
    got: list[Snapshot] = []
    assert reader.wait_for(got.append, version=new, timeout=WAIT) == new
    assert number_in(got[-1]) == 2
    assert "rollback by" in got[-1].manifest.writer.id
    with learner(backend, keys, history=1) as publisher:
        later = published(publisher, 5)
        assert later > new


def test_a_learner_at_work_is_left_alone(backend: Backend, keys: Keys) -> None:
    """Rolling back beside a learner is refused, without a trace, unless one asks to take over."""
    history = history_of(backend, keys)
    with learner(backend, keys, history=9) as publisher:
        with pytest.raises(UnknownVersionError):
            roll_back(history, "newest")
        first = published(publisher, 1)
        second = published(publisher, 2)
        with pytest.raises(LearnerAliveError, match=r"a learner is at work.*refreshes"):
            roll_back(history, first)
        assert history.find("newest")[0].version == second
        assert history.pins() == {}
        published(publisher, 3)
        new = roll_back(history, first, take_over=True)
        assert number_in(history.fetch("newest")) == 1
        with pytest.raises(StalePublisherError, match="rollback by"):
            publisher.publish(state(4)).wait(WAIT)
        assert history.find("newest")[0].version == new


def test_a_learner_that_only_claimed_is_left_alone(backend: Backend, keys: Keys) -> None:
    """A learner that has not published yet is not robbed of its namespace either."""
    history = history_of(backend, keys)
    with learner(backend, keys, history=9) as publisher:
        first = published(publisher, 1)
    with learner(backend, keys, history=9) as publisher:
        with pytest.raises(LearnerAliveError, match="has not published yet"):
            roll_back(history, first)
        published(publisher, 2)


def test_what_is_rolled_back_to_is_not_dropped_meanwhile(backend: Backend, keys: Keys) -> None:
    """The learner that is robbed of its namespace does not take the old state's blobs along."""
    history = history_of(backend, keys)
    scripted = ScriptedStore(backend.open())
    with closing(
        StatePublisher(scripted, keys.namespace, history=2, heartbeat_s=3600)
    ) as publisher:
        doomed = published(publisher, 1)
        published(publisher, 2)
        calls = scripted.calls["give_notice"]
        with scripted.paused("give_notice"):  # It has decided to drop the first.
            publisher.publish(state(3)).wait(WAIT)
            scripted.wait_for_calls("give_notice", calls + 1)
            new = roll_back(history, doomed, take_over=True)
        publisher.flush(WAIT)
    snapshot = history_of(backend, keys).fetch("newest")
    assert (snapshot.version, number_in(snapshot)) == (new, 1)


def test_the_learner_itself_publishes_an_old_state(backend: Backend, keys: Keys) -> None:
    """`publish_again` makes an old state the newest, whole, and sends nothing that is stored."""
    history = history_of(backend, keys)
    with learner(backend, keys, history=9) as publisher:
        old = publisher.publish({**state(1), "counters": {"steps": 1}}, weights_seq_no=5).wait(WAIT)
        publisher.publish({**state(2), "rl_module/new": {"w": np.ones(3)}}).wait(WAIT)
        sent = publisher.stats.bytes_sent
        new = publisher.publish_again(history.fetch(old)).wait(WAIT)
        snapshot = history.fetch("newest")
        assert (snapshot.version, snapshot.weights_seq_no) == (new, 5)
        assert new.generation == old.generation
        assert number_in(snapshot) == 1
        assert set(snapshot) == set(state(1))
        assert publisher.stats.bytes_sent == sent


def test_signed_versions(backend: Backend, keys: Keys) -> None:
    """A record that nobody with the key signed is neither fetched, pinned nor rolled back to."""
    keyring = Keyring(lambda: KEY)
    with learner(backend, keys, history=9, keyring=keyring) as publisher:
        first, second = published(publisher, 1), published(publisher, 2)
    store = backend.open()
    forged = Version(second.generation, second.number + 1)
    (record,) = store.find(keys, [second], timeout=WAIT).values()
    store.append(keys, forged, record, ttl_s=100, timeout=WAIT)
    unsigned = history_of(backend, keys)
    with pytest.raises(SettingsError, match="SIGNING_KEY_FILE"):
        roll_back(unsigned, first, watch_s=0.1)
    history = history_of(backend, keys, keyring=keyring)
    history.pin("first", first)
    assert number_in(history.fetch("first")) == 1
    stored = history.versions()
    assert [(s.version, s.manifest is None) for s in stored][:2] == [
        (forged, True),
        (second, False),
    ]
    assert "signature is wrong" in str(stored[0].problem)
    for call in (
        lambda: history.fetch(forged),
        lambda: history.pin("forged", forged),
        lambda: roll_back(history, "newest", watch_s=0.1),
    ):
        with pytest.raises(SignatureError, match=str(forged)):
            call()
    assert history.pins() == {"first": first}
    new = roll_back(history, "first", watch_s=0.1)
    reader = StateSubscriber(backend.open(), keys.namespace, keyring=keyring)
    snapshot = reader.fetch(timeout=WAIT)
    assert snapshot is not None
    assert (snapshot.version, number_in(snapshot)) == (new, 1)


def test_a_pin_that_fails_half_way_can_be_repeated() -> None:
    """After an error of the store a pin may be there or not; a second try makes it whole."""
    store, keys = MemoryStore(), Keys("n")
    with closing(StatePublisher(store, "n", heartbeat_s=3600)) as publisher:
        version = published(publisher, 1)
    scripted = ScriptedStore(store)
    history = History(scripted, "n")
    for operation in ("set_pin", "set_expiry", "notice", "pins", "find"):
        for script in (scripted.fail_next, scripted.lose_reply):
            script(operation, StoreError("no answer"))
            with pytest.raises(StoreError, match="no answer"):
                history.pin("p", version)
            assert history.pin("p", version) == version
            assert store.set_expiry(keys, [], ttl_s=None, timeout=1) == set()
            assert number_in(history.fetch("p")) == 1
            blobs = [keys.blob(d) for d in history.find("p")[1].digests()]
            assert not store._expiry.keys() & set(blobs)
            history.unpin("p")
