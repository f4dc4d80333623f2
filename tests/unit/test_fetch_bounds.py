"""What a forged manifest can make a reader fetch and hold: no more than it was told to take."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from redis_state_sync import StatePublisher
from redis_state_sync.blobs import PIECE_BYTES
from redis_state_sync.errors import DecodeError, EncodeError
from redis_state_sync.events import Failed
from redis_state_sync.keys import Keys
from redis_state_sync.manifest import Component, Manifest, Piece, Writer, digest_of
from redis_state_sync.memory_store import MemoryStore
from redis_state_sync.settings import MAX_STATE_BYTES
from redis_state_sync.testing import ScriptedStore
from redis_state_sync.version import Version
from tests.unit.bounds import peak_memory
from tests.unit.states import WAIT, Reader, number_in, publishing, state

TTL = {"ttl_s": 60.0, "timeout": WAIT}
KEYS = Keys("n")


@pytest.fixture
def store(redis_state_scripted_store: ScriptedStore) -> ScriptedStore:
    return redis_state_scripted_store


def plant(store: Any, after: Version, components: dict[str, list[Piece]]) -> Version:
    """Announces a version as whoever can write to the store can."""
    version = Version(after.generation, after.number + 1)
    parts = {name: Component(tuple(pieces)) for name, pieces in components.items()}
    manifest = Manifest(Writer("w", "h", 1), 0, parts)
    store.append(KEYS, version, manifest.encode(), **TTL)
    return version


BLOB = bytes(PIECE_BYTES)
CLAIMS = {
    "a terabyte": {
        f"rl_module/{i}": [Piece(f"{i:030x}{j:02x}", 512 << 20) for j in range(64)]
        for i in range(32)
    },
    "one blob many times": {"rl_module/p": [Piece(digest_of(BLOB), len(BLOB))] * 2000},
    "one blob in many components": {
        f"rl_module/{i}": [Piece(digest_of(BLOB), len(BLOB))] * 8 for i in range(200)
    },
    "a little too much": {"rl_module/p": [Piece("0" * 32, 512 << 20)] * 8 + [Piece("1" * 32, 1)]},
}


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)
def test_a_claim_beyond_the_limit(store: ScriptedStore, claim: dict[str, list[Piece]]) -> None:
    """What claims more than `max_state_bytes` is refused before anything is fetched: C58.

    A blob that is named again and again takes memory each time that it is named.
    """
    reader = Reader(store)
    with publishing(store) as publisher:
        held = publisher.publish(state(1)).wait(WAIT)
        reader.refresh()
        fetched = store.calls["get_blobs"]
        store.put_blobs(KEYS, {digest_of(BLOB): BLOB}, **TTL)
        plant(store, held, claim)
        assert peak_memory(lambda: [reader.refresh() for _ in range(3)]) < 100 << 20
        assert store.calls["get_blobs"] == fetched
        assert reader.subscriber.held == held
        failed = reader.seen(Failed)
        assert [event.category for event in failed] == ["codec"] * 3
        assert f"max_state_bytes is {MAX_STATE_BYTES}" in failed[0].message
        for number in range(2, 4):
            publisher.publish(state(number))
        publisher.flush(WAIT)
        snapshot = reader.refresh()
    assert snapshot is not None
    assert number_in(snapshot) == 3


def test_the_limit_is_the_readers_own(store: ScriptedStore) -> None:
    """A state of exactly `max_state_bytes` is taken, a byte less is too little."""
    zeros = np.zeros(3 * PIECE_BYTES, np.uint8)  # Its pieces but the first and the last are equal.
    with publishing(store) as publisher:
        publisher.publish({"w": zeros}).wait(WAIT)
        entry = store.newest(KEYS, timeout=WAIT)[0]
        manifest = Manifest.decode(entry.manifest)
        assert len(manifest.digests()) < len(manifest.components["w"].pieces)
        small = Reader(store, max_state_bytes=manifest.size - 1)
        assert small.refresh() is None
        with pytest.raises(DecodeError, match=f"claims {manifest.size} bytes"):
            small.subscriber.fetch()
        snapshot = Reader(store, max_state_bytes=manifest.size).refresh()
    assert snapshot is not None
    assert (snapshot["w"] == zeros).all()


def test_a_learner_says_so_first() -> None:
    """A state that no reader would take is refused when it is published, all components counted."""
    publisher = StatePublisher(MemoryStore(), "n", heartbeat_s=3600, max_state_bytes=10_000)
    publisher.publish({"a": np.zeros(5000, np.uint8)}).wait(WAIT)
    with pytest.raises(EncodeError, match="max_state_bytes is 10000: raise it"):
        publisher.publish({"b": np.zeros(5000, np.uint8)})
    publisher.publish({"b": np.zeros(4000, np.uint8)}).wait(WAIT)
    publisher.publish({"c": np.zeros(4900, np.uint8)}, remove=["a"]).wait(WAIT)
    publisher.close()


@pytest.mark.parametrize("change", [b"", b"x", bytes(1 << 20)], ids=len)
def test_a_replaced_blob(store: ScriptedStore, change: bytes) -> None:
    """A blob that was replaced by a shorter or longer one is damaged, never decoded: C58, C59."""
    reader = Reader(store)
    with publishing(store) as publisher:
        publisher.publish(state(1)).wait(WAIT)
        manifest = Manifest.decode(store.newest(KEYS, timeout=WAIT)[0].manifest)
        digest = next(iter(manifest.digests()))
        store.put_blobs(KEYS, {digest: change}, **TTL)
        assert reader.refresh() is None
    assert [event.category for event in reader.seen(Failed)] == ["integrity"]


def test_the_store_is_told_how_much_to_expect() -> None:
    """A reader tells the store how many bytes the blobs have, each blob counted once: C58."""
    limits: list[int] = []

    class Listening(MemoryStore):
        def get_blobs(self, *args: Any, limit: int, **kwargs: Any) -> list[bytes | None]:
            limits.append(limit)
            return super().get_blobs(*args, **kwargs)

    store = Listening()
    with publishing(store) as publisher:
        publisher.publish({"w": np.zeros(3 * PIECE_BYTES, np.uint8), "n": 1}).wait(WAIT)
        Reader(store).refresh()
        manifest = Manifest.decode(store.newest(KEYS, timeout=WAIT)[0].manifest)
    assert limits == [sum(manifest.digests().values())]
    assert limits[0] < manifest.size
