"""What a learner does to the store, without a thread: uploads that fail, readers that are gone."""

from __future__ import annotations

import time

import pytest

from redis_state_sync.announcer import Announcer
from redis_state_sync.blobs import Blob
from redis_state_sync.codec import encode
from redis_state_sync.errors import StorePermissionError, StoreTimeoutError
from redis_state_sync.keys import RESEND, Keys
from redis_state_sync.manifest import Writer
from redis_state_sync.memory_store import MemoryStore
from redis_state_sync.reader_notes import note_of
from redis_state_sync.testing import ScriptedStore
from redis_state_sync.version import Version
from tests.unit.states import WAIT, publishing, state

KEYS = Keys("n")
LOST = StoreTimeoutError("the reply was lost")


@pytest.fixture
def store(redis_state_scripted_store: ScriptedStore) -> ScriptedStore:
    return redis_state_scripted_store


def announcing(store: ScriptedStore, *, ttl_s: float = 60.0) -> Announcer:
    return Announcer(
        store,
        KEYS,
        Writer("w", "host", 1),
        history=4,
        ttl_s=ttl_s,
        probe_timeout_s=1.0,
        transfer_timeout_s=1.0,
    )


def blobs(content: int) -> dict[str, Blob]:
    return {"c": Blob(encode(content, path="c"))}


def blobs_in(store: ScriptedStore) -> int:
    assert isinstance(store.inner, MemoryStore)
    return sum(key.startswith(KEYS.blob("")) for key in store.inner._values)


def test_versions_that_never_were_leave_nothing(store: ScriptedStore) -> None:
    """However many uploads in a row come to nothing, one at most is left in the store: C28, C66."""
    announcer = announcing(store)
    announcer.announce(1, blobs(1), None)
    for number in range(2, 9):
        store.lose_reply("put_blobs", LOST)
        with pytest.raises(StoreTimeoutError):
            announcer.announce(number, blobs(number), None)
        assert blobs_in(store) == 2
    announcer.announce(9, blobs(1), None)  # What is in use is not taken for such an upload.
    announcer.retain()
    assert blobs_in(store) == 1


def test_an_announcement_whose_reply_was_lost_is_no_stray(store: ScriptedStore) -> None:
    """A version that was stored, though its learner does not know, keeps its blobs: C28."""
    announcer = announcing(store)
    store.lose_reply("append", LOST)
    with pytest.raises(StoreTimeoutError):
        announcer.announce(1, blobs(1), None)
    store.lose_reply("put_blobs", LOST)
    with pytest.raises(StoreTimeoutError):
        announcer.announce(2, blobs(2), None)
    first = announcer.records.open(store.newest(KEYS, timeout=1)[0])
    assert None not in store.get_blobs(KEYS, list(first.digests()), timeout=1)


def test_a_learner_that_may_not_drop(store: ScriptedStore) -> None:
    """A learner that can not drop what a failed version left publishes all the same."""
    announcer = announcing(store)
    for number in (1, 2):
        store.lose_reply("put_blobs", LOST)
        with pytest.raises(StoreTimeoutError):
            announcer.announce(number, blobs(number), None)
        store.fail_next("drop", StorePermissionError("NOPERM"))
    assert announcer.announce(3, blobs(3), None).version.number == 3


def readers(store: ScriptedStore) -> set[str]:
    assert isinstance(store.inner, MemoryStore)
    return set(store.inner._values.get(KEYS.readers, {}))


def test_readers_that_are_gone_are_forgotten(store: ScriptedStore) -> None:
    """Of EnvRunners that were restarted again and again only those of the last day are known."""
    announcer = announcing(store, ttl_s=86_400.0)
    now_ms, hour_ms = time.time_ns() // 1_000_000, 3_600_000
    for age in range(200):
        note = note_of(Version(1, 1), now_ms - age * hour_ms - 1000)
        store.note_reader(KEYS, f"host:{age}:env_runner_1", note, ttl_s=86_400.0, timeout=1.0)
    store.ask_for_blob(KEYS, "0" * 32, ttl_s=86_400.0, timeout=1.0)
    announcer.forget_readers()
    assert readers(store) == {f"host:{age}:env_runner_1" for age in range(24)} | {RESEND}
    announcer.forget_readers()
    assert store.calls["forget_readers"] == 1  # the next look comes in an hour


def test_a_heartbeat_forgets_readers(store: ScriptedStore) -> None:
    """A learner that publishes nothing looks after the notes, too, and may fail to."""
    store.note_reader(KEYS, "gone", "1-1 5", ttl_s=60.0, timeout=1.0)
    store.note_reader(KEYS, "here", note_of(Version(1, 1), time.time_ns() // 1_000_000),
                      ttl_s=60.0, timeout=1.0)  # fmt: skip
    store.fail_next("forget_readers", StorePermissionError("NOPERM"))
    with publishing(store, heartbeat_s=0.01, ttl_s=0.24) as publisher:
        store.wait_for_calls("forget_readers", 3)
        assert publisher.healthy
        publisher.publish(state(1)).wait(WAIT)
        assert publisher.stats.failures == {"permission": 1}
    assert "gone" not in readers(store)
