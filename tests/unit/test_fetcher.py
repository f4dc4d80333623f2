"""What a reader fetches: only what is new; large components once on a node; nothing unchecked."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from redis_state_sync.blobs import PIECE_BYTES, Blob
from redis_state_sync.codec import encode
from redis_state_sync.errors import BlobMissingError, DecodeError, IntegrityError
from redis_state_sync.fetcher import SMALLEST_SHARED, Fetcher
from redis_state_sync.keys import Keys
from redis_state_sync.manifest import BLAKE2B, XXH3, Manifest, Writer
from redis_state_sync.node_cache import NodeCache, open_node_cache
from redis_state_sync.snapshot import Encoded, Snapshot
from redis_state_sync.version import Version
from tests.unit.node_files import files, opened, own_folder
from tests.unit.node_store import NodeStore

LARGE = np.arange(SMALLEST_SHARED // 4, dtype=np.float32)
SMALL = np.arange(100, dtype=np.float32)
V = Version(1, 1)


@pytest.fixture(params=[True, False], ids=["into places", "bytes"])
def store(request: pytest.FixtureRequest) -> NodeStore:
    return NodeStore(places=request.param)


def fetcher(store: NodeStore, folder: Path | None, limit: int | None = None, **kw: Any) -> Fetcher:
    """A reader's; without a folder it has no cache."""
    open_cache = partial(open_node_cache, str(folder), limit) if folder else lambda: None
    settings = {"max_state_bytes": 1 << 30, "stall_timeout_s": 20.0, **kw}
    namespace = settings.pop("namespace", "n")
    return Fetcher(store, Keys(namespace), open_cache=open_cache, **settings)


def put(
    store: NodeStore, trees: Mapping[str, Any], algorithm: str = XXH3, namespace: str = "n"
) -> Manifest:
    """Stores a version's blobs; its manifest."""
    blobs = {name: Blob(encode({"w": tree}), algorithm) for name, tree in trees.items()}
    for blob in blobs.values():
        pieces = {digest: bytes(data) for digest, data in blob.pieces()}
        store.put_blobs(Keys(namespace), pieces, ttl_s=60, timeout=1)
    components = {name: blob.component for name, blob in blobs.items()}
    return Manifest(Writer("w", "h", 1), 0, components, algorithm=algorithm)


def fetched(reader: Fetcher, manifest: Manifest) -> tuple[Mapping[str, Encoded], int]:
    return reader.fetch(V, manifest, timeout=20)


def arrays(manifest: Manifest, blobs: Mapping[str, Encoded]) -> dict[str, Any]:
    snapshot = Snapshot(V, manifest, blobs, frozenset())
    return {name: snapshot[name]["w"] for name in snapshot}


def same(found: Mapping[str, Any], trees: Mapping[str, Any]) -> bool:
    return found.keys() == trees.keys() and all(np.array_equal(found[n], trees[n]) for n in trees)


@pytest.mark.parametrize("cached", [True, False], ids=["cache", "no cache"])
def test_only_what_is_new(store: NodeStore, shared_memory: Path, cached: bool) -> None:
    """A component that did not change is the same memory, and is not asked for: C42."""
    reader = fetcher(store, shared_memory if cached else None)
    first = {"rl_module/p": LARGE, "rl_module/q": LARGE + 1, "c": SMALL}
    before, size = fetched(reader, put(store, first))
    assert size == sum(encode({"w": tree}).size for tree in first.values())
    store.asked.clear()
    second = {"rl_module/q": LARGE + 2, "c": SMALL, "rl_module/p": LARGE}
    manifest = put(store, second)
    after, size = fetched(reader, manifest)
    assert same(arrays(manifest, after), second)
    assert list(after) == list(second)
    assert after["rl_module/p"] is before["rl_module/p"]
    assert after["c"] is before["c"]
    assert store.asked == [p.digest for p in manifest.components["rl_module/q"].pieces]
    assert size == encode({"w": LARGE}).size


def test_the_second_reader_of_a_node(store: NodeStore, shared_memory: Path) -> None:
    """What one reader fetched another one of the node finds; small components it fetches."""
    trees = {"rl_module/p": LARGE, "c": SMALL}
    manifest = put(store, trees)
    first = fetcher(store, shared_memory)
    fetched(first, manifest)
    store.asked.clear()
    blobs, size = fetched(fetcher(store, shared_memory), manifest)
    assert same(arrays(manifest, blobs), trees)
    assert store.asked == [p.digest for p in manifest.components["c"].pieces]
    assert size == encode({"w": SMALL}).size


def test_two_components_of_the_same_bytes(store: NodeStore, shared_memory: Path) -> None:
    """Components that are equal, as a policy and its target at first, are fetched once: C42."""
    for folder in (shared_memory, None):
        store.asked.clear()
        trees = {"rl_module/p": LARGE, "rl_module/target": LARGE, "a": SMALL, "b": SMALL}
        manifest = put(store, trees)
        blobs, size = fetched(fetcher(store, folder), manifest)
        assert same(arrays(manifest, blobs), trees)
        assert sorted(store.asked) == sorted(manifest.digests())
        assert size == sum(manifest.digests().values())


def test_pieces_that_recur(store: NodeStore, shared_memory: Path) -> None:
    """A component whose pieces recur is put together from one of each."""
    zeros = np.zeros(7 * PIECE_BYTES // 2, np.uint8)
    manifest = put(store, {"rl_module/p": zeros})
    assert len(manifest.digests()) < len(manifest.components["rl_module/p"].pieces)
    for folder in (shared_memory, None):
        blobs, _ = fetched(fetcher(store, folder), manifest)
        assert same(arrays(manifest, blobs), {"rl_module/p": zeros})


@pytest.mark.parametrize("cached", [True, False], ids=["cache", "no cache"])
@pytest.mark.parametrize("name", ["rl_module/p", "c"])
def test_a_fetch_that_fails(store: NodeStore, shared_memory: Path, cached: bool, name: str) -> None:
    """A missing or damaged blob leaves what was held, and no file; the next fetch has it all."""
    reader = fetcher(store, shared_memory if cached else None)
    first = {"rl_module/p": LARGE, "c": SMALL}
    before = put(store, first)
    held, _ = fetched(reader, before)
    kept = arrays(before, held)
    second = {"rl_module/p": LARGE + 1, "c": SMALL + 1}
    manifest = put(store, second)
    digest = manifest.components[name].pieces[-1].digest
    there = len(files(shared_memory))
    for answer, error in ((None, BlobMissingError), (b"?", IntegrityError)):
        store.answers[digest] = answer
        with pytest.raises(error):
            fetched(reader, manifest)
        assert same(kept, first)
        assert same(arrays(before, held), first)
        assert not [file for file in files(shared_memory) if file.endswith(".part")]
        if name == "rl_module/p":
            assert len(files(shared_memory)) == there
    store.answers.clear()
    blobs, _ = fetched(reader, manifest)
    assert same(arrays(manifest, blobs), second)


def test_a_damaged_blob_reaches_nobody(store: NodeStore, shared_memory: Path) -> None:
    """What one reader was given damaged, no other reader of the node finds: C59."""
    manifest = put(store, {"rl_module/p": LARGE})
    (piece,) = manifest.components["rl_module/p"].pieces
    store.answers[piece.digest] = bytes(piece.size)
    for _ in range(2):
        with pytest.raises(IntegrityError):
            fetched(fetcher(store, shared_memory), manifest)
    store.answers.clear()
    blobs, _ = fetched(fetcher(store, shared_memory), manifest)
    assert same(arrays(manifest, blobs), {"rl_module/p": LARGE})


def test_namespaces_do_not_share(store: NodeStore, shared_memory: Path) -> None:
    """The same bytes in another namespace are fetched there: what is whose stays apart."""
    readers = [fetcher(store, shared_memory, namespace=namespace) for namespace in ("n", "m")]
    for namespace, reader in zip(("n", "m"), readers, strict=True):
        manifest = put(store, {"rl_module/p": LARGE}, namespace=namespace)
        _, size = fetched(reader, manifest)
        assert size == encode({"w": LARGE}).size
    assert len(files(shared_memory)) == 2


def test_algorithms_do_not_share(store: NodeStore, shared_memory: Path) -> None:
    """A manifest by XXH3 whose digests are those of BLAKE2b fills no file of the latter's."""
    signed = put(store, {"rl_module/p": LARGE}, BLAKE2B)
    forged = Manifest(signed.writer, 0, signed.components, algorithm=XXH3)
    for _ in range(2):
        with pytest.raises(IntegrityError):
            fetched(fetcher(store, shared_memory), forged)
    names = {m.components["rl_module/p"].name_on_node("n", m.algorithm) for m in (signed, forged)}
    assert len(names) == 2
    blobs, size = fetched(fetcher(store, shared_memory), signed)
    assert size == encode({"w": LARGE}).size
    assert same(arrays(signed, blobs), {"rl_module/p": LARGE})


@pytest.mark.parametrize("limit", [1, SMALLEST_SHARED, 3 * SMALLEST_SHARED])
def test_a_cache_without_room(store: NodeStore, shared_memory: Path, limit: int) -> None:
    """What the node's cache has no room for is held in the reader's own memory."""
    trees = {f"rl_module/{number}": LARGE + number for number in range(4)}
    manifest = put(store, trees)
    blobs, size = fetched(fetcher(store, shared_memory, limit), manifest)
    assert same(arrays(manifest, blobs), trees)
    assert size == manifest.size
    assert (
        sum((own_folder(shared_memory) / f).stat().st_size for f in files(shared_memory)) <= limit
    )


def test_a_cache_that_is_wiped(store: NodeStore, shared_memory: Path) -> None:
    """When somebody removes the cache's folder, readers go on and find each other in a new one."""
    reader, sizes = fetcher(store, shared_memory), []
    for number in range(6):
        trees = {"rl_module/p": LARGE + number}
        manifest = put(store, trees)
        blobs, _ = fetched(reader, manifest)
        assert same(arrays(manifest, blobs), trees)
        _, size = fetched(fetcher(store, shared_memory), manifest)
        sizes.append(size)
        if number == 1:
            shutil.rmtree(own_folder(shared_memory))
    assert sizes[0] == sizes[-1] == 0


def test_a_filler_that_stands_still(store: NodeStore, shared_memory: Path) -> None:
    """Who waits for another one that does not go on fetches for itself, after the stall."""
    manifest = put(store, {"rl_module/p": LARGE})
    component = manifest.components["rl_module/p"]
    cache: NodeCache = opened(shared_memory)
    slot = cache.slot(component.name_on_node("n", XXH3), component.size)
    assert slot is not None
    began = time.monotonic()
    blobs, size = fetched(fetcher(store, shared_memory, stall_timeout_s=0.2), manifest)
    assert time.monotonic() - began >= 0.2
    assert size == component.size
    assert same(arrays(manifest, blobs), {"rl_module/p": LARGE})


def test_what_is_kept(store: NodeStore, shared_memory: Path) -> None:
    """A snapshot that somebody keeps stays as it is, however many versions come after it."""
    for folder in (shared_memory, None):
        reader, kept = fetcher(store, folder), []
        for number in range(8):
            trees = {"rl_module/p": LARGE + number, "c": SMALL + number}
            manifest = put(store, trees)
            blobs, _ = fetched(reader, manifest)
            snapshot = Snapshot(V, manifest, blobs, frozenset())
            kept.append((trees, snapshot, {name: snapshot.view(name)["w"] for name in snapshot}))
        for trees, snapshot, views in kept:
            assert same(views, trees)
            assert same({name: snapshot[name]["w"] for name in snapshot}, trees)


def test_more_than_there_is_memory(store: NodeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state that this process has no memory for is refused with a remedy, as any that fails."""
    reader = fetcher(store, None)
    manifest = put(store, {"c": SMALL})

    def take(size: int) -> Any:
        raise MemoryError

    monkeypatch.setattr(reader._pool, "take", take)
    with pytest.raises(DecodeError, match=r"no memory for version 1-1.*max_state_bytes"):
        fetched(reader, manifest)
