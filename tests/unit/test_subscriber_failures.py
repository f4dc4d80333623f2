"""The reading side when the store fails: it goes on with what it has."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from redis_state_sync import SettingsError, Version, errors
from redis_state_sync.events import Failed, Polled
from redis_state_sync.manifest import Component, Manifest, Writer
from redis_state_sync.testing import ScriptedStore
from tests.unit.states import WAIT, Reader, number_in, publishing, state


@pytest.fixture
def store(redis_state_scripted_store: ScriptedStore) -> ScriptedStore:
    return redis_state_scripted_store


FAILURES = [
    errors.StoreUnavailableError("refused"),
    errors.StoreTimeoutError("no answer"),
    errors.StoreTLSError("handshake"),
    errors.StoreLoadingError("loading"),
    errors.StoreAuthError("password"),
    errors.StorePermissionError("NOPERM"),
    errors.StoreReadOnlyError("MISCONF"),
    errors.StoreFullError("OOM"),
    errors.StoreReplyError("garbage"),
    errors.StoreError("other"),
    SettingsError("password file is being rotated"),
]


@pytest.mark.parametrize("operation", ["newest", "get_blobs"])
@pytest.mark.parametrize("error", FAILURES, ids=lambda e: type(e).__name__)
def test_every_failure_leaves_the_reader_as_it_is(
    store: ScriptedStore, caplog: pytest.LogCaptureFixture, error: Any, operation: str
) -> None:
    """Any failure of poll or fetch: no exception, one warning, counted, recovers by itself: C5."""
    reader = Reader(store)
    with publishing(store) as publisher:
        publisher.publish(state(1)).wait(WAIT)
        reader.refresh()
        held = reader.subscriber.held
        publisher.publish(state(2)).wait(WAIT)
        store.fail_next(operation, error, times=3)
        with caplog.at_level(logging.WARNING, "redis_state_sync"):
            for _ in range(3):
                assert reader.refresh() is None
        assert reader.subscriber.held == held
        assert [r.levelname for r in caplog.records] == ["WARNING"]
        assert str(error) in caplog.text
        assert [e.category for e in reader.seen(Failed)] == [error.category] * 3
        snapshot = reader.refresh()
    assert snapshot is not None
    assert number_in(snapshot) == 2


def test_a_failing_store_is_left_alone_for_a_while(store: ScriptedStore) -> None:
    """While cooling down a refresh does not ask at all: ten refreshes cost one failure: C4."""
    reader = Reader(store)
    store.go_down(errors.StoreTimeoutError("no answer"))
    for _ in range(10):
        assert reader.subscriber.refresh(reader.applied.append) is None
    assert store.calls["newest"] == 1
    reader.refresh()
    reader.refresh()
    assert store.calls["newest"] == 3
    store.come_back()
    with publishing(store) as publisher:
        publisher.publish(state(1)).wait(WAIT)
        assert reader.refresh() is not None


def test_the_first_poll_may_take_longer(store: ScriptedStore) -> None:
    """Only the very first poll has the time to connect; the others have the short one: C4, C74."""
    reader = Reader(store, poll_timeout_s=0.01, first_timeout_s=WAIT)
    store.delay("newest", 0.05)
    reader.refresh()
    assert reader.seen(Failed) == []
    reader.refresh()
    assert [e.category for e in reader.seen(Failed)] == ["timeout"]


def test_a_superseded_version_gives_way_to_the_newest(store: ScriptedStore) -> None:
    """A blob that goes while it is being read means: take the newest, without any failure: C27."""
    reader = Reader(store)
    with publishing(store, history=1) as publisher:
        publisher.publish(state(3)).wait(WAIT)
        reading = store.get_blobs
        raced: list[int] = []

        def race(*args: Any, **kwargs: Any) -> list[bytes | None]:
            if not raced:
                raced.append(1)
                for number in range(4, 10):
                    publisher.publish(state(number)).wait(WAIT)
            return reading(*args, **kwargs)

        store.get_blobs = race  # type: ignore[method-assign]
        snapshot = reader.refresh()
    assert raced
    assert snapshot is not None
    assert number_in(snapshot) == 9
    assert reader.seen(Failed) == []
    assert len(reader.seen(Polled)) == 2


def test_a_missing_blob_is_counted_and_heals(store: ScriptedStore) -> None:
    """An announced version without its blob keeps the old one; the next publish heals: C28, C63."""
    reader = Reader(store)
    with publishing(store) as publisher:
        publisher.publish(state(1)).wait(WAIT)
        reader.refresh()
        publisher.publish(state(2)).wait(WAIT)
        gone = store.newest(publisher.keys, timeout=1)[0]
        digests = list(Manifest.decode(gone.manifest).digests())
        store.drop(publisher.keys, [], digests, timeout=1)
        assert reader.refresh() is None
        assert [e.category for e in reader.seen(Failed)] == ["blob_missing"]
        assert reader.seen(Failed)[0].operation == "fetch"
        publisher.publish(state(2)).wait(WAIT)
        snapshot = reader.refresh()
    assert snapshot is not None
    assert number_in(snapshot) == 2


def test_blobs_without_a_record_are_no_version(store: ScriptedStore) -> None:
    """What a crashed publisher uploaded but never announced is not seen: C16, C28."""
    reader = Reader(store)
    with publishing(store) as publisher:
        publisher.publish(state(11)).wait(WAIT)
        store.put_blobs(publisher.keys, {"0" * 32: b"half of version 12"}, ttl_s=60, timeout=1)
        snapshot = reader.refresh()
        assert snapshot is not None
        assert number_in(snapshot) == 11
        assert reader.refresh() is None


def test_a_damaged_blob_is_never_applied(store: ScriptedStore) -> None:
    """One flipped bit: the old version stays, the failure counts, the next one is taken: C59."""
    reader = Reader(store)
    with publishing(store) as publisher:
        publisher.publish(state(1)).wait(WAIT)
        reader.refresh()
        publisher.publish(state(2)).wait(WAIT)
        manifest = Manifest.decode(store.newest(publisher.keys, timeout=1)[0].manifest)
        store.corrupt(manifest.components["rl_module/p"].pieces[0].digest)
        assert reader.refresh() is None
        assert [e.category for e in reader.seen(Failed)] == ["integrity"]
        assert len(reader.applied) == 1
        publisher.publish(state(3)).wait(WAIT)
        snapshot = reader.refresh()
    assert snapshot is not None
    assert number_in(snapshot) == 3


def test_an_undecodable_component_is_rejected_whole(store: ScriptedStore) -> None:
    """A blob with the right digest but no known format is rejected when applied: C48, C58."""
    reader = Reader(store)
    with publishing(store) as publisher:
        publisher.publish(state(1)).wait(WAIT)
        reader.refresh()
        held = reader.subscriber.held
        publisher.publish(state(2)).wait(WAIT)

        def apply(snapshot: Any) -> None:
            snapshot._blobs = {name: b"RSS\x09" + bytes(99) for name in snapshot}
            number_in(snapshot)

        reader.clock.now += 10
        assert reader.subscriber.refresh(apply) is None
        assert reader.subscriber.held == held
    assert [(e.operation, e.category) for e in reader.seen(Failed)] == [("apply", "codec")]


def test_an_unreadable_manifest_is_looked_past(store: ScriptedStore) -> None:
    """Garbage in the stream is counted once and hides neither older nor newer versions: C58."""
    reader = Reader(store)
    with publishing(store) as publisher:
        version = publisher.publish(state(1)).wait(WAIT)
        garbage = Version(version.generation, version.number + 1)
        store.append(publisher.keys, garbage, b"\xc1", ttl_s=60, timeout=1)
        snapshot = reader.refresh()
        assert snapshot is not None
        assert number_in(snapshot) == 1
        reader.refresh()
        failures = len(reader.seen(Failed))
        assert failures >= 1
        reader.refresh()
        assert len(reader.seen(Failed)) == failures


def test_a_component_without_pieces_is_rejected(store: ScriptedStore) -> None:
    """A manifest that names a component without pieces gives a rejected version, no crash: C58."""
    reader = Reader(store)
    manifest = Manifest(Writer("w", "h", 1), 0, {"rl_module/p": Component(())})
    store.append(reader.subscriber.keys, Version(1, 1), manifest.encode(), ttl_s=60, timeout=1)
    assert reader.subscriber.refresh(lambda s: s["rl_module/p"]) is None
    assert [(e.operation, e.category) for e in reader.seen(Failed)] == [("apply", "codec")]


def test_a_reader_without_the_right_to_note(store: ScriptedStore) -> None:
    """A reader that may only read applies states all the same, and asks for the note once: C83."""
    reader = Reader(store)
    store.fail_next("note_reader", errors.StorePermissionError("NOPERM"), times=9)
    with publishing(store) as publisher:
        for number in (1, 2):
            publisher.publish(state(number)).wait(WAIT)
            assert reader.refresh() is not None
    assert store.calls["note_reader"] == 1
    assert reader.seen(Failed) == []


def test_a_note_that_fails_harms_nothing(store: ScriptedStore) -> None:
    """A failing note is counted, the state applied."""
    reader = Reader(store)
    store.fail_next("note_reader", errors.StoreTimeoutError("slow"))
    with publishing(store) as publisher:
        publisher.publish(state(1)).wait(WAIT)
        assert reader.refresh() is not None
    assert [e.operation for e in reader.seen(Failed)] == ["note"]


def test_poll_and_fetch_raise(store: ScriptedStore) -> None:
    """Who asks once, outside of a loop, is told what failed."""
    reader = Reader(store)
    store.fail_next("newest", errors.StoreTimeoutError("x"), times=2)
    with pytest.raises(errors.StoreTimeoutError):
        reader.subscriber.poll()
    with pytest.raises(errors.StoreTimeoutError):
        reader.subscriber.fetch()
    with publishing(store) as publisher:
        publisher.publish(state(1)).wait(WAIT)
        digests = list(
            Manifest.decode(store.newest(publisher.keys, timeout=1)[0].manifest).digests()
        )
        store.corrupt(digests[0])
        with pytest.raises(errors.IntegrityError):
            reader.subscriber.fetch()
        store.lose_blob(digests[0])
        with pytest.raises(errors.BlobMissingError):
            reader.subscriber.fetch()


def test_a_warning_comes_again_after_a_recovery(
    store: ScriptedStore, caplog: pytest.LogCaptureFixture
) -> None:
    """Each outage is warned of once, also the second one."""
    reader = Reader(store)
    with publishing(store) as publisher, caplog.at_level(logging.WARNING, "redis_state_sync"):
        for number in (1, 2):
            store.go_down(errors.StoreTimeoutError("no answer"))
            reader.refresh()
            reader.refresh()
            store.come_back()
            publisher.publish(state(number)).wait(WAIT)
            assert reader.refresh() is not None
    assert len([r for r in caplog.records if "going on with version" in r.message]) == 2
