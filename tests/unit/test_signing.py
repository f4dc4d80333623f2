"""Publisher and subscriber with a signing key, and someone else who can write to the store."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from redis_state_sync import Keyring, StalePublisherError, StatePublisher, StoreError, Version
from redis_state_sync.codec import encode
from redis_state_sync.errors import SettingsError
from redis_state_sync.events import Failed
from redis_state_sync.keyring import KEY_ENV
from redis_state_sync.keys import Keys
from redis_state_sync.manifest import Component, Manifest, Piece, Writer, digest_of
from redis_state_sync.memory_store import MemoryStore
from redis_state_sync.testing import ScriptedStore
from redis_state_sync.version import LAST_GENERATION
from tests.unit.states import WAIT, Reader, number_in, publishing, state

KEYS = Keys("n")
KEYRING = Keyring(lambda: "k" * 32)
OTHER = Keyring(lambda: "other" + "k" * 32)


@pytest.fixture
def store(redis_state_scripted_store: ScriptedStore) -> ScriptedStore:
    return redis_state_scripted_store


def plant(store: ScriptedStore, version: Version, writer: str = "me") -> None:
    """A well-formed version of someone who can write to the store."""
    components = {}
    for name, tree in state(666).items():
        data = bytes(encode(tree))
        components[name] = Component((Piece(digest_of(data), len(data)),))
        store.put_blobs(KEYS, {digest_of(data): data}, ttl_s=60, timeout=1)
    forged = Manifest(Writer(writer, "h", 1), 0, components)
    store.append(KEYS, version, forged.encode(), ttl_s=60, timeout=1)


def failures(reader: Reader) -> set[str]:
    return {event.category for event in reader.seen(Failed)}


def test_signed_states_arrive(store: ScriptedStore) -> None:
    """With the same key on both sides nothing else changes."""
    with publishing(store, keyring=KEYRING) as publisher:
        for number in (1, 2):
            publisher.publish(state(number)).wait(WAIT)
            snapshot = (reader := Reader(store, keyring=KEYRING)).refresh()
            assert snapshot is not None
            assert number_in(snapshot) == number
            assert failures(reader) == set()


@pytest.mark.parametrize("key", ["none", "other"])
def test_a_reader_takes_nothing_that_its_key_did_not_sign(store: ScriptedStore, key: str) -> None:
    """Unsigned and wrongly signed states are counted, warned of, and never applied."""
    reader = Reader(store, keyring=KEYRING)
    with publishing(store, keyring=None if key == "none" else OTHER) as publisher:
        publisher.publish(state(1)).wait(WAIT)
        assert reader.refresh() is None
    assert failures(reader) == {"signature"}


def test_a_planted_version_is_passed_over(store: ScriptedStore) -> None:
    """Readers go on with what the learner signed, above and below what was planted."""
    reader = Reader(store, keyring=KEYRING, writer="me")
    with publishing(store, keyring=KEYRING, writer_id="me") as publisher:
        first = publisher.publish(state(1)).wait(WAIT)
        plant(store, Version(first.generation, 50))
        snapshot = reader.refresh()
        assert snapshot is not None
        assert number_in(snapshot) == 1
        # Without a key the same reader falls for it.
        fooled = Reader(store, writer="me").refresh()
        assert fooled is not None
        assert number_in(fooled) == 666


@pytest.mark.parametrize("by", ["publish", "heartbeat"])
def test_a_planted_version_does_not_end_the_learner(
    store: ScriptedStore, by: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A learner takes over again from a forger, says so, and its readers follow."""
    reader = Reader(store, keyring=KEYRING)
    with publishing(
        store, keyring=KEYRING, heartbeat_s=3600.0 if by == "publish" else 0.02
    ) as publisher:
        first = publisher.publish(state(1)).wait(WAIT)
        reader.refresh()
        forged = Version(first.generation + 10**6, 0 if by == "publish" else 5)
        plant(store, forged)
        if by == "publish":
            last = publisher.publish(state(2)).wait(WAIT)
        else:
            while (last := publisher.last_version or first) == first:
                store.wait_for_calls("newest", store.calls["newest"] + 1)
        assert last > forged
        assert publisher.generation == last.generation
        snapshot = reader.refresh()
        assert snapshot is not None
        assert snapshot.version == last
        assert number_in(snapshot) == (2 if by == "publish" else 1)
    assert "taking the namespace over again" in caplog.text
    assert "not signed" in caplog.text


def test_a_forger_who_guesses_the_next_version(store: ScriptedStore) -> None:
    """A record under our own next version is not taken for ours: the reply was not lost."""
    reader = Reader(store, keyring=KEYRING)
    with publishing(store, keyring=KEYRING) as publisher:
        plant(store, Version(publisher.generation, 1))
        version = publisher.publish(state(1)).wait(WAIT)
        assert version > Version(publisher.generation, 0)
        snapshot = reader.refresh()
        assert snapshot is not None
        assert (snapshot.version, number_in(snapshot)) == (version, 1)


def test_a_successor_with_the_key_is_obeyed(store: ScriptedStore) -> None:
    """Fencing among learners with the key is as ever."""
    with publishing(store, keyring=KEYRING) as old, publishing(store, keyring=KEYRING):
        handle = old.publish(state(1))
        with pytest.raises(StalePublisherError):
            handle.wait(WAIT)


def test_a_learner_without_the_key_gives_way(store: ScriptedStore) -> None:
    """Of two learners in one namespace the one with the key wins, whoever came last."""
    with publishing(store, keyring=KEYRING) as ours, publishing(store) as theirs:
        theirs.publish(state(1)).wait(WAIT)
        ours.publish(state(2)).wait(WAIT)
        handle = theirs.publish(state(3))
        with pytest.raises(StalePublisherError):
            handle.wait(WAIT)


def test_the_last_generation(store: ScriptedStore) -> None:
    """A version above which there is none is an error that names key and remedy."""
    plant(store, Version(LAST_GENERATION, 1))
    with pytest.raises(StoreError, match=r"rss:\{n\}:versions"):
        StatePublisher(store, "n", keyring=KEYRING)


def test_an_older_state_of_our_own_is_not_taken_again(store: ScriptedStore) -> None:
    """A whole store set back to an older, rightly signed version takes no reader back."""
    reader = Reader(store, keyring=KEYRING)
    with publishing(store, keyring=KEYRING) as publisher:
        publisher.publish(state(1)).wait(WAIT)
        (old,) = store.newest(KEYS, timeout=1)
        publisher.publish(state(2)).wait(WAIT)
        reader.refresh()
    assert isinstance(store.inner, MemoryStore)
    store.inner._values.pop(KEYS.versions)
    store.append(KEYS, old.version, old.manifest, ttl_s=60, timeout=1)
    for _ in range(3):
        assert reader.refresh() is None
    assert failures(reader) == {"behind"}


def test_a_blob_can_not_be_replaced(store: ScriptedStore) -> None:
    """Other bytes under a signed digest are refused, and never decoded."""
    with publishing(store, keyring=KEYRING) as publisher:
        publisher.publish({"rl_module/p": {"w": np.ones(4)}}).wait(WAIT)
        (entry,) = store.newest(KEYS, timeout=1)
        reader = Reader(store, keyring=KEYRING)
        (digest,) = reader.subscriber._records.open(entry).digests()
        forged = bytes(encode({"w": np.zeros(4)}))
        store.put_blobs(KEYS, {digest: forged}, ttl_s=60, timeout=1)
        assert reader.refresh() is None
    assert failures(reader) == {"integrity"}


def test_the_environments_key_is_used(
    store: ScriptedStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A key in the environment signs and is asked for without a word in the program."""
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv(KEY_ENV, "k" * 32)
    with publishing(store) as publisher:
        publisher.publish(state(1)).wait(WAIT)
        assert Reader(store, keyring=KEYRING).refresh() is not None
        assert Reader(store, keyring=OTHER).refresh() is None
    monkeypatch.setenv(KEY_ENV, "short-secret")
    with pytest.raises(SettingsError):
        Reader(store)
    assert "k" * 32 not in caplog.text
    assert "short-secret" not in caplog.text
