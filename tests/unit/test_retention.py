"""What is kept, and what is dropped."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_state_sync import errors, open_store
from redis_state_sync.keys import Keys
from redis_state_sync.manifest import Component, Manifest, Piece, Writer
from redis_state_sync.memory_store import MemoryStore
from redis_state_sync.records import Records
from redis_state_sync.retention import Retention, to_drop
from redis_state_sync.version import Version
from tests.unit.peers import peer, silent


def manifest(*digests: int) -> Manifest:
    pieces = tuple(Piece(f"{d:032x}", 1) for d in digests)
    return Manifest(Writer("w", "h", 1), 0, {"c": Component(pieces)} if pieces else {})


def test_keeps_the_newest_states() -> None:
    """The newest K states stay, and with them every blob that they use: C29, C66."""
    stored = {Version(1, n): manifest(n, 100) for n in range(1, 6)}
    versions, digests = to_drop(stored, [], 2)
    assert versions == [Version(1, 1), Version(1, 2), Version(1, 3)]
    assert digests == [f"{d:032x}" for d in (1, 2, 3)]


def test_keeps_pinned_versions() -> None:
    """A pinned version and its blobs stay until it is unpinned: C104."""
    stored = {Version(1, n): manifest(n) for n in range(1, 5)}
    versions, digests = to_drop(stored, [Version(1, 1)], 1)
    assert versions == [Version(1, 2), Version(1, 3)]
    assert f"{1:032x}" not in digests


def test_a_claim_does_not_count_as_a_state() -> None:
    """A take-over drops no state of the earlier learner before there is a newer one: C29."""
    stored = {Version(1, 1): manifest(1), Version(2, 0): manifest()}
    assert to_drop(stored, [], 1) == ([], [])
    stored[Version(2, 1)] = manifest(2)
    assert to_drop(stored, [], 1) == ([Version(1, 1), Version(2, 0)], [f"{1:032x}"])


stored_strategy = st.dictionaries(
    st.builds(Version, st.integers(1, 3), st.integers(0, 6)),
    st.builds(lambda ds: manifest(*ds), st.lists(st.integers(0, 5), max_size=3)),
    max_size=10,
)


@given(
    stored_strategy, st.integers(1, 4), st.sets(st.builds(Version, st.just(1), st.integers(1, 6)))
)
def test_never_drops_what_is_needed(
    stored: dict[Version, Manifest], history: int, pinned: set[Version]
) -> None:
    """The newest entry always stays, and no kept version loses a blob."""
    versions, digests = to_drop(stored, pinned, history)
    kept = set(stored) - set(versions)
    if stored:
        assert max(stored) in kept
    assert pinned & {v for v in stored if not v.is_claim} <= kept
    assert not set(digests) & {d for v in kept for d in stored[v].digests()}
    assert len([v for v in kept if v not in pinned]) <= history + 1


def test_drops_what_an_earlier_learner_left() -> None:
    """Versions that were there before are loaded, and dropped in their turn: C28, C66."""
    store, keys = MemoryStore(), Keys("n")
    for number in (1, 2):
        store.put_blobs(keys, {f"{number:032x}": b"x"}, ttl_s=60, timeout=1)
        store.append(keys, Version(1, number), manifest(number).encode(), ttl_s=60, timeout=1)
    retention = Retention(store, keys, Records(keys, None), 1)
    retention.load(timeout=1)
    store.put_blobs(keys, {f"{3:032x}": b"x"}, ttl_s=60, timeout=1)
    store.append(keys, Version(2, 1), manifest(3).encode(), ttl_s=60, timeout=1)
    retention.keep(Version(2, 1), manifest(3), timeout=1)
    assert [e.version for e in store.newest(keys, count=9, timeout=1)] == [Version(2, 1)]
    digests = [f"{d:032x}" for d in (1, 2, 3)]
    assert store.get_blobs(keys, digests, timeout=1) == [None, None, b"x"]


def test_a_server_that_hangs_is_left_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a version may take to send, looking for what to drop does not: C72, C76."""
    monkeypatch.setattr("redis_state_sync.retention._LOOK_TIMEOUT_S", 0.1)
    with peer(silent) as url:
        store = open_store(url)
        retention = Retention(store, Keys("n"), Records(Keys("n"), None), 4)
        started = time.monotonic()
        with pytest.raises(errors.StoreTimeoutError):
            retention.keep(Version(1, 1), manifest(1), timeout=30.0)
        assert time.monotonic() - started < 5.0
        store.close()
