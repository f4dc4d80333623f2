"""What `redis_state_sync.store.Store` promises, on every store alike."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from redis_state_sync.errors import NotNewerError, StoreError, StoreReplyError
from redis_state_sync.keys import RESEND, Keys
from redis_state_sync.memory_store import MemoryStore
from redis_state_sync.reader_notes import note_of
from redis_state_sync.store import Entry, Store
from redis_state_sync.version import Version
from tests.contract.conftest import WAIT, Backend, run

SIZES = [0, 10, 70_000, 5000, 1 << 20, 3 << 20]
TTL = {"ttl_s": 100.0, "timeout": WAIT}


def append(store: Store, keys: Keys, *versions: Version) -> None:
    for version in versions:
        store.append(keys, version, str(version).encode(), **TTL)


def listed(store: Store, keys: Keys) -> list[Version]:
    return [entry.version for entry in store.newest(keys, count=1000, timeout=WAIT)]


def test_an_empty_namespace(store: Store, keys: Keys) -> None:
    """Where nothing was published every question has an answer, and none is an error: C17."""
    assert store.newest(keys, timeout=WAIT) == []
    assert store.newest(keys, after=Version(1, 1), count=5, timeout=WAIT) == []
    assert store.get_blobs(keys, [], timeout=WAIT) == []
    assert store.get_blobs(keys, ["0" * 32], timeout=WAIT) == [None]
    assert store.pins(keys, timeout=WAIT) == {}
    assert store.refresh(keys, [], **TTL) == set()
    store.drop(keys, [], [], timeout=WAIT)
    store.drop(keys, [Version(1, 1)], ["0" * 32], timeout=WAIT)


def test_newest(store: Store, keys: Keys) -> None:
    """Entries come newest first, as many as asked, strictly newer than `after`: C1."""
    versions = [Version(1, 1), Version(1, 2), Version(1, 10), Version(2, 0), Version(2, 1)]
    append(store, keys, *versions)
    assert store.newest(keys, timeout=WAIT) == [Entry(Version(2, 1), b"2-1")]
    assert listed(store, keys) == versions[::-1]
    for i, version in enumerate(versions):
        newer = store.newest(keys, after=version, count=1000, timeout=WAIT)
        assert [e.version for e in newer] == versions[:i:-1]
    two = store.newest(keys, after=Version(1, 1), count=2, timeout=WAIT)
    assert [e.version for e in two] == [Version(2, 1), Version(2, 0)]
    assert store.newest(keys, after=Version(1, 5), count=9, timeout=WAIT)[-1].manifest == b"1-10"


@pytest.mark.parametrize(
    ("newest", "refused"),
    [
        (Version(2, 5), Version(2, 5)),
        (Version(2, 5), Version(2, 4)),
        (Version(2, 5), Version(1, 99)),
        (Version(2**64 - 1, 5), Version(2**64 - 2, 2**64 - 1)),
    ],
)
def test_only_greater_versions(store: Store, keys: Keys, newest: Version, refused: Version) -> None:
    """A version that is not greater than the newest is refused, and changes nothing: C10, C34."""
    append(store, keys, newest)
    with pytest.raises(NotNewerError, match=str(refused)):
        store.append(keys, refused, b"other", **TTL)
    assert store.newest(keys, count=9, timeout=WAIT) == [Entry(newest, str(newest).encode())]


def test_the_newest_stays_refused_after_it_was_dropped(store: Store, keys: Keys) -> None:
    """Dropping the newest version does not make its number free again: C10, C19."""
    append(store, keys, Version(1, 1), Version(1, 2))
    store.drop(keys, [Version(1, 2)], [], timeout=WAIT)
    assert listed(store, keys) == [Version(1, 1)]
    with pytest.raises(NotNewerError):
        append(store, keys, Version(1, 2))
    store.drop(keys, [Version(1, 1)], [], timeout=WAIT)
    with pytest.raises(NotNewerError):
        append(store, keys, Version(1, 1))
    assert listed(store, keys) == []
    append(store, keys, Version(1, 3))
    assert listed(store, keys) == [Version(1, 3)]


def test_zero_is_no_version(store: Store, keys: Keys) -> None:
    """0-0 can not be stored anywhere: C7."""
    with pytest.raises(StoreError):
        append(store, keys, Version(0, 0))
    assert listed(store, keys) == []


@pytest.mark.parametrize("manifest", [b"", b"\x00\r\n$-1\r\n\xff", bytes(range(256)) * 100])
def test_manifests_are_any_bytes(store: Store, keys: Keys, manifest: bytes) -> None:
    """A manifest comes back byte for byte, whatever it holds."""
    store.append(keys, Version(1, 1), manifest, **TTL)
    assert store.newest(keys, timeout=WAIT) == [Entry(Version(1, 1), manifest)]


def test_blobs(store: Store, keys: Keys) -> None:
    """Blobs of every kind of buffer come back byte for byte, in the order asked for: C59."""
    blobs = {
        "a" * 32: b"",
        "b" * 32: b"\r\n\x00+OK",
        "c" * 32: memoryview(bytes(range(256)) * 90),
        "d" * 32: np.arange(20_000, dtype=np.uint8),
        "e" * 32: bytearray(b"x"),
    }
    store.put_blobs(keys, blobs, **TTL)
    order = ["d" * 32, "f" * 32, "a" * 32, "e" * 32, "c" * 32, "b" * 32, "a" * 32]
    received = store.get_blobs(keys, order, timeout=WAIT)
    assert received == [bytes(blobs[d]) if d in blobs else None for d in order]


def test_more_blobs_than_a_batch(store: Store, keys: Keys) -> None:
    """Many blobs are stored, read and dropped across batch borders: C60."""
    blobs = {f"{i:032x}": b"%d" % i for i in range(50)}
    store.put_blobs(keys, blobs, **TTL)
    assert store.get_blobs(keys, list(blobs), timeout=WAIT) == list(blobs.values())
    store.drop(keys, [], list(blobs)[:40], timeout=WAIT)
    left = store.get_blobs(keys, list(blobs), timeout=WAIT)
    assert left == [None] * 40 + list(blobs.values())[40:]


@pytest.mark.not_for("fake-tcp")  # It takes about 100 kB.
def test_large_blobs(store: Store, keys: Keys) -> None:
    """Blobs of several pieces' size, more than one upload batch, come back whole: C60, C69."""
    blobs = {f"{i:032x}": np.full(5 << 20, i, np.uint8) for i in range(3)}
    store.put_blobs(keys, blobs, **TTL)
    for digest, data in blobs.items():
        (received,) = store.get_blobs(keys, [digest], timeout=WAIT)
        assert received == data.tobytes()
    store.drop(keys, [], list(blobs), timeout=WAIT)


@pytest.mark.not_for("fake-tcp")
def test_blobs_into_buffers(backend: Backend, store: Store, keys: Keys) -> None:
    """Blobs may be received where they are to be; those of other lengths come as they are."""
    blobs = {f"{i:032x}": np.full(size, i, np.uint8) for i, size in enumerate(SIZES)}
    store.put_blobs(keys, blobs, **TTL)
    places = [memoryview(bytearray(size)) for size in SIZES]
    places[1], places[3] = memoryview(bytearray(3)), memoryview(bytearray(SIZES[3] + 1))
    told: list[object] = []
    for _ in range(2):  # It can be used again.
        found = store.get_blobs(
            keys,
            [*blobs, "f" * 32],
            timeout=WAIT,
            into=[*places, memoryview(bytearray(5))],
            arrived=told.append,
        )
        assert found == [*(data.tobytes() for data in blobs.values()), None]
        there = [blob is place for blob, place in zip(found, places, strict=False)]
        if backend.name.startswith(("memory", "fake", "valkey-ordinary")):
            assert there == [False] * len(places)
        else:
            assert there == [True, False, True, False, True, True]
    # In this process nothing comes: it is there.
    expected = [] if store.in_process else 2 * [data.tobytes() for data in blobs.values()]
    assert [blob for blob in told if blob is not None] == expected
    store.drop(keys, [], list(blobs), timeout=WAIT)


@pytest.mark.not_for("fake", "memory")
def test_blobs_longer_than_expected(store: Store, keys: Keys) -> None:
    """Blobs of the length that a caller expects are read; much longer ones are not: C58, C69."""
    blobs = {f"{i:032x}": bytes(100_000) for i in range(20)}
    store.put_blobs(keys, blobs, **TTL)
    expected = [*blobs.values(), None]
    order = [*blobs, "f" * 32]
    for _ in range(2):  # It can be used again.
        assert store.get_blobs(keys, order, timeout=WAIT, limit=2_000_000) == expected
        for limit in (0, 50_000, 1_800_000):
            with pytest.raises(StoreReplyError, match="where at most"):
                store.get_blobs(keys, order, timeout=WAIT, limit=limit)


def test_writing_a_blob_twice(store: Store, keys: Keys) -> None:
    """Every call may be repeated: the same blob, drop or note a second time is no error."""
    for _ in range(2):
        store.put_blobs(keys, {"a" * 32: b"x"}, **TTL)
        store.note_reader(keys, "reader", "1-1 5", **TTL)
    assert store.get_blobs(keys, ["a" * 32], timeout=WAIT) == [b"x"]
    for _ in range(2):
        store.drop(keys, [Version(1, 1)], ["a" * 32], timeout=WAIT)


def test_refresh_names_what_is_missing(store: Store, keys: Keys) -> None:
    """`refresh` says which blobs the store lacks, so that they are sent again: C28, C63."""
    store.put_blobs(keys, {"a" * 32: b"x", "b" * 32: b"y"}, **TTL)
    store.drop(keys, [], ["b" * 32], timeout=WAIT)
    assert store.refresh(keys, ["a" * 32, "b" * 32, "c" * 32], **TTL) == {"b" * 32, "c" * 32}


def test_a_reader_asks_for_a_blob(store: Store, keys: Keys) -> None:
    """The last request is kept until blobs are stored, beside what is missing anyway."""
    store.put_blobs(keys, {"a" * 32: b"1"}, **TTL)
    store.ask_for_blob(keys, "b" * 32, **TTL)
    store.ask_for_blob(keys, "a" * 32, **TTL)
    for _ in range(2):
        assert store.refresh(keys, ["a" * 32], **TTL) == {"a" * 32}
        assert store.refresh(keys, ["c" * 32], **TTL) == {"a" * 32, "c" * 32}
    store.put_blobs(keys, {"a" * 32: b"1"}, **TTL)
    assert store.refresh(keys, ["a" * 32], **TTL) == set()


def test_drop_takes_only_what_was_named(store: Store, keys: Keys) -> None:
    """Dropping versions and blobs leaves the others: C102."""
    append(store, keys, *(Version(1, n) for n in range(1, 5)))
    store.put_blobs(keys, {"a" * 32: b"x", "b" * 32: b"y"}, **TTL)
    store.drop(keys, [Version(1, 1), Version(1, 3)], ["a" * 32], timeout=WAIT)
    assert listed(store, keys) == [Version(1, 4), Version(1, 2)]
    assert store.get_blobs(keys, ["a" * 32, "b" * 32], timeout=WAIT) == [None, b"y"]


def test_namespaces_do_not_meet(store: Store, keys: Keys) -> None:
    """What happens in one namespace is not seen in another, however alike the names are: C98."""
    others = [Keys(keys.namespace + suffix) for suffix in ("x", "/x", ":versions", "0")]
    append(store, keys, Version(5, 5))
    store.put_blobs(keys, {"a" * 32: b"x"}, **TTL)
    for other in others:
        assert store.newest(other, timeout=WAIT) == []
        assert store.get_blobs(other, ["a" * 32], timeout=WAIT) == [None]
        append(store, other, Version(1, 1))
        store.drop(other, [Version(5, 5)], ["a" * 32], timeout=WAIT)
    assert listed(store, keys) == [Version(5, 5)]
    assert store.get_blobs(keys, ["a" * 32], timeout=WAIT) == [b"x"]


def test_another_handle_sees_it_at_once(backend: Backend, keys: Keys) -> None:
    """What one handle stored every other one reads in its next call: C2."""
    writer, reader = backend.open(), backend.open()
    for number in range(1, 20):
        writer.put_blobs(keys, {f"{number:032x}": b"x"}, **TTL)
        append(writer, keys, Version(1, number))
        assert reader.newest(keys, timeout=WAIT)[0].version == Version(1, number)
        assert reader.get_blobs(keys, [f"{number:032x}"], timeout=WAIT) == [b"x"]


def test_the_clock(store: Store) -> None:
    """The store's clock is in milliseconds since 1970, and does not stand still."""
    first = store.time_ms(timeout=WAIT)
    assert abs(first / 1000 - time.time()) < 60
    deadline = time.monotonic() + WAIT
    while store.time_ms(timeout=WAIT) <= first and time.monotonic() < deadline:
        time.sleep(0.001)
    assert store.time_ms(timeout=WAIT) > first


def test_pins(backend: Backend, store: Store, keys: Keys) -> None:
    """Pins are read back by name, as an operator writes them by hand: C104."""
    if isinstance(store, MemoryStore):
        store._set(keys.pins, {"best": Version(1, 3), "ä/1": Version(2**64 - 1, 1)}, 100)
    else:
        run(store, ("HSET", keys.pins, "best", "1-3", "ä/1", f"{2**64 - 1}-1"))
    assert store.pins(keys, timeout=WAIT) == {
        "best": Version(1, 3),
        "ä/1": Version(2**64 - 1, 1),
    }


def test_namespaces_are_listed(store: Store, keys: Keys) -> None:
    """Every namespace with versions or pins is found, on whichever node of a cluster it is."""
    names = [f"{keys.namespace}/{i}" for i in range(9)]
    for name in names:
        append(store, Keys(name), Version(1, 1))
    store.set_pin(Keys(f"{keys.namespace}/pin"), "p", Version(1, 1), timeout=WAIT)
    store.put_blobs(Keys(f"{keys.namespace}/blob"), {"a" * 32: b"x"}, **TTL)
    found = store.namespaces(timeout=WAIT)
    assert found == sorted(found)
    own = [name for name in found if name.startswith(f"{keys.namespace}/")]
    assert own == [*names, f"{keys.namespace}/pin"]


def test_clearing(backend: Backend, store: Store, keys: Keys) -> None:
    """All of one namespace is removed, and nothing of others, however alike their names are."""
    others = [Keys(keys.namespace + suffix) for suffix in ("0", "/0", ":versions")]
    for each in (keys, *others):
        append(store, each, Version(1, 1))
        store.put_blobs(each, {f"{i:032x}": b"x" for i in range(40)}, **TTL)
        store.set_pin(each, "p", Version(1, 1), timeout=WAIT)
        store.keep_record(each, Version(1, 1), b"m", timeout=WAIT)
        store.note_reader(each, "r", "1-1 5", **TTL)
        store.give_notice(each, [Version(1, 1)], **TTL)
    before = [backend.expiries(other).keys() for other in others]
    assert store.clear(keys, timeout=WAIT) == 45
    assert backend.expiries(keys) == {}
    assert [backend.expiries(other).keys() for other in others] == before
    assert store.clear(keys, timeout=WAIT) == 0
    append(store, keys, Version(1, 1))  # It begins anew.


def test_readers_are_listed(store: Store, keys: Keys) -> None:
    """The notes of all readers, and nothing else that is in their hash."""
    assert store.readers(keys, timeout=WAIT) == {}
    store.note_reader(keys, "ä", "1-1 5", **TTL)
    store.note_reader(keys, "b", "1-2 6", **TTL)
    store.ask_for_blob(keys, "a" * 32, **TTL)
    assert store.readers(keys, timeout=WAIT) == {"ä": "1-1 5", "b": "1-2 6"}


def test_notices(store: Store, keys: Keys) -> None:
    """A notice says what is about to go until that is done, taken back, or its time is over."""
    assert store.notice(keys, timeout=WAIT) == set()
    versions = [Version(1, 1), Version(2**64 - 1, 7)]
    store.give_notice(keys, versions, **TTL)
    assert store.notice(keys, timeout=WAIT) == set(versions)
    store.give_notice(keys, versions[:1], **TTL)
    assert store.notice(keys, timeout=WAIT) == {versions[0]}
    store.drop(keys, [], ["a" * 32], timeout=WAIT)
    assert store.notice(keys, timeout=WAIT) == {versions[0]}
    store.drop(keys, versions, [], timeout=WAIT)
    assert store.notice(keys, timeout=WAIT) == set()
    store.give_notice(keys, versions, **TTL)
    store.give_notice(keys, [], **TTL)
    assert store.notice(keys, timeout=WAIT) == set()


def test_expiry_of_blobs(backend: Backend, store: Store, keys: Keys) -> None:
    """Blobs expire when told to, or never, whatever is refreshed; missing ones are named."""
    digests = [f"{i:032x}" for i in range(70)]  # More than go into one batch.
    store.put_blobs(keys, dict.fromkeys(digests, b"x"), **TTL)
    append(store, keys, Version(1, 1))
    left = store.expires_in(keys, timeout=WAIT)
    assert left is not None
    assert 0 < left <= 100
    missing = {"f" * 32}
    asked = [*digests[1:], *missing]
    assert store.set_expiry(keys, asked, ttl_s=None, timeout=WAIT) == missing
    assert store.refresh(keys, [*digests, *missing], pinned=asked, **TTL) == missing
    lasting = {key for key, left in backend.expiries(keys).items() if left < 0}
    assert lasting == {keys.blob(digest) for digest in digests[1:]}
    assert store.set_expiry(keys, asked, ttl_s=50, timeout=WAIT) == missing
    assert all(0 < left <= 100 for left in backend.expiries(keys).values())
    store.refresh(keys, digests, pinned=digests[1:], **TTL)
    left = backend.expiries(keys)[keys.blob(digests[0])]
    assert 50 < left <= 100
    assert all(backend.expiries(keys)[keys.blob(d)] <= 50 for d in digests[1:])


def test_it_says_what_it_is(store: Store) -> None:
    """A store describes itself and its server in words: C13."""
    assert store.describe()
    assert store.server_facts(timeout=WAIT)


def test_usable_after_close(store: Store, keys: Keys) -> None:
    """A closed store connects anew, and nothing was lost."""
    append(store, keys, Version(1, 1))
    store.close()
    store.close()
    assert listed(store, keys) == [Version(1, 1)]


def test_from_several_threads(backend: Backend, store: Store, keys: Keys) -> None:
    """Threads that share one handle each get the answers to their own questions."""
    blobs = {f"{i:032x}": b"%d" % i for i in range(4)}
    store.put_blobs(keys, blobs, **TTL)
    wrong: list[object] = []

    def ask(digest: str, expected: bytes) -> None:
        for _ in range(10 if backend.name.startswith("fake-tcp") else 100):
            if store.get_blobs(keys, [digest], timeout=WAIT) != [expected]:
                wrong.append(digest)

    threads = [threading.Thread(target=ask, args=item) for item in blobs.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert wrong == []


def test_of_writers_that_race_one_wins(backend: Backend, keys: Keys) -> None:
    """Of several handles that announce the same version at once exactly one succeeds: C15."""
    count = 4
    barrier = threading.Barrier(count)
    outcomes: list[str] = []

    def race(store: Store) -> None:
        store.time_ms(timeout=WAIT)  # connected
        barrier.wait(WAIT)
        try:
            append(store, keys, Version(7, 7))
            outcomes.append("stored")
        except NotNewerError:
            outcomes.append("refused")

    threads = [threading.Thread(target=race, args=(backend.open(),)) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert sorted(outcomes) == ["refused"] * (count - 1) + ["stored"]


def test_forget_readers(store: Store, keys: Keys) -> None:
    """Notes of readers that were not heard of for long go, as many as there are; others stay."""
    now_ms = store.time_ms(timeout=WAIT)
    store.forget_readers(keys, now_ms=now_ms, ttl_s=60.0, timeout=WAIT)  # where there are none
    store.note_reader(keys, "gone", note_of(Version(1, 1), now_ms - 61_000), **TTL)
    store.note_reader(keys, "unreadable", "note", **TTL)
    store.note_reader(keys, "here", note_of(Version(1, 1), now_ms - 1000), **TTL)
    store.ask_for_blob(keys, "a" * 32, **TTL)
    for _ in range(2):
        store.forget_readers(keys, now_ms=now_ms, ttl_s=60.0, timeout=WAIT)
        assert readers(store, keys) == {"here", RESEND}
    store.forget_readers(keys, now_ms=now_ms + 120_000, ttl_s=60.0, timeout=WAIT)
    assert readers(store, keys) == {RESEND}
    assert store.refresh(keys, [], **TTL) == {"a" * 32}


def readers(store: Store, keys: Keys) -> set[str]:
    if isinstance(store, MemoryStore):
        return set(store._get(keys.readers) or {})
    (names,) = run(store, ("HKEYS", keys.readers))
    return {name.decode() for name in names}


def test_everything_expires(backend: Backend, store: Store, keys: Keys) -> None:
    """No key of a namespace is immortal; each announcement refreshes the small ones: C30, C67."""
    store.put_blobs(keys, {"a" * 32: b"x"}, ttl_s=50, timeout=WAIT)
    store.append(keys, Version(1, 1), b"m", ttl_s=50, timeout=WAIT)
    store.note_reader(keys, "reader", "1-1 5", ttl_s=50, timeout=WAIT)
    expiries = backend.expiries(keys)
    assert set(expiries) == {keys.versions, keys.readers, keys.blob("a" * 32)}
    assert all(0 < seconds <= 51 for seconds in expiries.values())
    store.append(keys, Version(1, 2), b"m", ttl_s=200, timeout=WAIT)
    later = backend.expiries(keys)
    assert later[keys.versions] > 100
    assert later[keys.readers] > 100
    assert later[keys.blob("a" * 32)] <= 51
    store.refresh(keys, ["a" * 32], ttl_s=500, timeout=WAIT)
    later = backend.expiries(keys)
    assert later[keys.versions] > 250
    assert later[keys.blob("a" * 32)] > 250


def test_memory_forgets_what_expired() -> None:
    """A store in memory frees what nobody asks for any more, as a server does: C67."""
    now = 1000.0
    store = MemoryStore(clock=lambda: now)
    for number in range(100):
        keys = Keys(f"trial/{number}")
        store.put_blobs(keys, {"a" * 32: b"x"}, ttl_s=10, timeout=WAIT)
        store.append(keys, Version(1, 1), b"m", ttl_s=10, timeout=WAIT)
        store.note_reader(keys, "reader", "1-1 5", ttl_s=10, timeout=WAIT)
        now += 5
    assert len(store._values) == len(store._expiry) == 2 * 3


# Expiry takes its time, and does not depend on how one connects.
@pytest.mark.not_for(
    "fakeredis-resp3",
    "fake-tcp",
    "valkey-tcp",
    "valkey-unix-resp3",
    "valkey-ordinary",
    "valkey-cluster-resp3",
)
def test_what_expired_is_gone(backend: Backend, store: Store, keys: Keys) -> None:
    """After its time a namespace is empty again; what was refreshed in time is not: C67."""
    gone = Keys(keys.namespace + "/gone")
    for each in (gone, keys):
        store.put_blobs(each, {"a" * 32: b"x"}, ttl_s=1, timeout=WAIT)
        store.append(each, Version(1, 1), b"m", ttl_s=1, timeout=WAIT)
    store.refresh(keys, ["a" * 32], ttl_s=100, timeout=WAIT)
    deadline = time.monotonic() + WAIT
    while store.newest(gone, timeout=WAIT) and time.monotonic() < deadline:
        time.sleep(0.02)
    while store.get_blobs(gone, ["a" * 32], timeout=WAIT) != [None] and time.monotonic() < deadline:
        time.sleep(0.02)
    assert backend.expiries(gone) == {}
    assert listed(store, keys) == [Version(1, 1)]
    assert store.get_blobs(keys, ["a" * 32], timeout=WAIT) == [b"x"]
    append(store, gone, Version(1, 1))  # an expired namespace begins anew
