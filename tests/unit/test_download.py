"""The blobs of a version, brought to their places and checked."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from redis_state_sync.download import Download
from redis_state_sync.errors import BlobMissingError, IntegrityError
from redis_state_sync.keys import Keys
from redis_state_sync.manifest import BLAKE2B, XXH3, Component, Piece, digest_of
from redis_state_sync.version import Version
from tests.unit.node_store import NodeStore

KEYS = Keys("n")
ONE, TWO, THREE = b"one" * 1000, b"zwei" * 500, b"\0" * 77


@pytest.fixture(params=[True, False], ids=["into places", "bytes"])
def store(request: pytest.FixtureRequest) -> NodeStore:
    made = NodeStore(places=request.param)
    put(made, ONE, TWO, THREE)
    return made


def put(store: NodeStore, *blobs: bytes, algorithm: str = XXH3) -> None:
    store.put_blobs(KEYS, {digest_of(b, algorithm): b for b in blobs}, ttl_s=60, timeout=1)


def component(*blobs: bytes, algorithm: str = XXH3) -> Component:
    return Component(tuple(Piece(digest_of(blob, algorithm), len(blob)) for blob in blobs))


def download(store: NodeStore, algorithm: str = XXH3) -> Download:
    return Download(store, KEYS, Version(1, 1), algorithm, time.monotonic() + 20)


def filled(run: Download, components: Sequence[Component]) -> list[bytes]:
    buffers = [bytearray(b"?" * c.size) for c in components]
    run.fill([(c, memoryview(b)) for c, b in zip(components, buffers, strict=True)])
    return [bytes(buffer) for buffer in buffers]


def test_pieces_are_put_together(store: NodeStore) -> None:
    """Each component is its pieces in order, whichever way the store hands blobs over."""
    run = download(store)
    assert filled(run, [component(ONE, TWO), component(THREE)]) == [ONE + TWO, THREE]
    assert run.received == len(ONE + TWO + THREE)


def test_blobs_that_recur(store: NodeStore) -> None:
    """A blob that occurs again, within a component or in others, is fetched once."""
    run = download(store)
    wanted = [component(ONE, TWO, ONE, ONE), component(ONE), component(TWO, TWO)]
    assert filled(run, wanted) == [ONE + TWO + ONE + ONE, ONE, TWO + TWO]
    assert sorted(store.asked) == sorted(map(digest_of, (ONE, TWO)))
    assert run.received == len(ONE + TWO)


def test_what_was_received_adds_up(store: NodeStore) -> None:
    """One download of several calls counts all that came."""
    run, target = download(store), bytearray(len(ONE))
    told: list[int] = []
    run.fill_one(component(ONE), memoryview(target), lambda: told.append(1))
    assert target == ONE
    filled(run, [component(TWO)])
    assert run.received == len(ONE + TWO)
    assert told == [1]


def test_nothing_to_fetch(store: NodeStore) -> None:
    """A component without pieces is empty, and nothing is asked for."""
    assert filled(download(store), [component()]) == [b""]
    assert filled(download(store), []) == []
    assert store.asked == []


def test_a_blob_that_is_gone(store: NodeStore) -> None:
    """A missing blob is named by the error."""
    store.answers[digest_of(TWO)] = None
    with pytest.raises(BlobMissingError, match=digest_of(TWO)) as caught:
        filled(download(store), [component(ONE, TWO, THREE)])
    assert caught.value.digest == digest_of(TWO)


@pytest.mark.parametrize(
    "answer",
    [b"", TWO[:-1], TWO + b"\0", bytes([TWO[0] ^ 1]) + TWO[1:], TWO[:-1] + b"!", ONE],
    ids=["empty", "short", "long", "first byte", "last byte", "another blob"],
)
@pytest.mark.parametrize("algorithm", [XXH3, BLAKE2B])
def test_a_damaged_blob(store: NodeStore, answer: bytes, algorithm: str) -> None:
    """A blob of another length, or with another digest, is refused and named: C59."""
    put(store, ONE, TWO, algorithm=algorithm)
    digest = digest_of(TWO, algorithm)
    store.answers[digest] = answer
    run = download(store, algorithm)
    with pytest.raises(IntegrityError, match=f"blob {digest}.*damaged") as caught:
        filled(run, [component(ONE, TWO, algorithm=algorithm)])
    assert caught.value.digest == digest
    assert run.received == 0


def test_the_wrong_algorithm(store: NodeStore) -> None:
    """A digest counts as one of the manifest's algorithm only: the other one's proves nothing."""
    with pytest.raises(IntegrityError):
        filled(download(store, BLAKE2B), [component(ONE, algorithm=XXH3)])


def test_one_digest_with_two_sizes(store: NodeStore) -> None:
    """A manifest that gives one blob two sizes is refused, whichever is the right one."""
    digest = digest_of(ONE)
    for sizes in ((len(ONE), 5), (5, len(ONE)), (len(ONE), len(ONE) + 1)):
        forged = Component(tuple(Piece(digest, size) for size in sizes))
        with pytest.raises(IntegrityError):
            filled(download(store), [forged])
