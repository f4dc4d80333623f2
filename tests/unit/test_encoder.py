"""What a learner encodes: into which memory, and when not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_state_sync import blobs
from redis_state_sync.blobs import Blob
from redis_state_sync.codec import Encoding, encode
from redis_state_sync.encoder import Encoder
from redis_state_sync.errors import EncodeError
from redis_state_sync.fetcher import SMALLEST_SHARED
from redis_state_sync.manifest import XXH3
from redis_state_sync.node_cache import NodeCache
from redis_state_sync.wire import aligned
from tests.unit.node_files import files, opened
from tests.unit.trees import trees

LARGE = np.arange(SMALLEST_SHARED // 4, dtype=np.float32)


@pytest.fixture
def cache(shared_memory: Path) -> NodeCache:
    return opened(shared_memory)


@pytest.fixture
def encoder(cache: NodeCache) -> Encoder:
    return Encoder(XXH3, cache)


def shared(cache: NodeCache, blob: Blob) -> bytes | None:
    """What readers of the node find of a component."""
    lease = cache.find(blob.component.name_on_node("n", XXH3), len(blob))
    return None if lease is None else bytes(lease.map())


@given(trees, trees)
def test_equality_of_encodings(one: Any, other: Any) -> None:
    """A blob holds a tree if, and only if, encoding the tree gives just that blob."""
    for tree in (one, other):
        blob = encode(tree)
        for candidate in (one, other):
            same = np.array_equal(blob, encode(candidate))
            assert Encoding(candidate).is_in(blob) == same


@given(
    trees.filter(lambda tree: encode(tree).size < 5000),
    st.integers(0, 2**63),
    st.integers(1, 255),
)
def test_every_byte_counts(tree: Any, where: int, flip: int) -> None:
    """One byte that differs is noticed, unless it is padding, which nobody reads."""
    blob = encode(tree)
    damaged = blob.copy()
    damaged[where % blob.size] ^= flip
    assert Encoding(tree).is_in(damaged) == (where % blob.size in _padding(tree))


def _padding(tree: Any) -> set[int]:
    """Places of a blob that are between its arrays, where `write` puts zeros."""
    encoding = Encoding(tree)
    front, *arrays = encoding._parts
    position, places = front.size, set()
    for array in arrays:
        end = position + array.size
        position = aligned(end)
        places |= set(range(end, min(position, encoding.size)))
    return places


def test_the_size_counts() -> None:
    """A blob of another size does not hold a tree, though it begins with all its bytes."""
    tree = {"w": np.zeros(100, np.uint8)}
    blob = encode(tree)
    assert not Encoding(tree).is_in(np.append(blob, np.zeros(64, np.uint8)))
    assert not Encoding(tree).is_in(blob[:-64])


@pytest.mark.parametrize("place", [0, 65_535, 70_000, -1])
def test_a_difference_anywhere(place: int) -> None:
    """What is compared piece by piece is compared to its end."""
    array = np.zeros(3 * (256 << 10) // 4 + 5, np.float32)
    blob = encode({"w": array})
    assert Encoding({"w": array}).is_in(blob)
    array[place] = 1
    assert not Encoding({"w": array}).is_in(blob)


@pytest.mark.parametrize("array", [LARGE, LARGE[:10]], ids=["large", "small"])
def test_what_did_not_change(encoder: Encoder, array: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unchanged component is the same blob, and its digest is not worked out again: C42."""
    hashed: list[int] = []

    def digest_of(data: Any, algorithm: str) -> str:
        hashed.append(len(data))
        return f"{len(hashed):032x}"

    monkeypatch.setattr(blobs, "digest_of", digest_of)
    first = encoder.encode("rl_module/p", {"w": array}, None)
    assert first.component == first.component
    assert encoder.encode("rl_module/p", {"w": array.copy()}, first) is first
    assert first.component
    assert hashed == [len(first)]
    changed = encoder.encode("rl_module/p", {"w": array + 1}, first)
    assert changed is not first
    assert changed.component != first.component


def test_nan_and_zeros(encoder: Encoder) -> None:
    """Bits are compared, not numbers: NaN equals itself, and -0.0 is another value than 0.0."""
    nan = encoder.encode("c", np.full(9, np.nan), None)
    assert encoder.encode("c", np.full(9, np.nan), nan) is nan
    zero = encoder.encode("c", np.zeros(9), None)
    assert encoder.encode("c", -np.zeros(9), zero) is not zero


def test_large_components_are_shared(encoder: Encoder, cache: NodeCache) -> None:
    """Components of 256 KiB and more are found by readers of the node, smaller ones are not."""
    large = encoder.encode("rl_module/p", {"w": LARGE}, None)
    small = encoder.encode("rl_module/q", {"w": LARGE[:-2000]}, None)
    assert shared(cache, large) is None  # Not before it is in the store.
    large.share("n")
    small.share("n")
    assert shared(cache, large) == large.data.tobytes() == encode({"w": LARGE}).tobytes()
    assert shared(cache, small) is None


def test_sharing_twice(encoder: Encoder, cache: NodeCache) -> None:
    """A blob that is announced again and again is committed once."""
    blob = encoder.encode("rl_module/p", {"w": LARGE}, None)
    for _ in range(3):
        blob.share("n")
    assert shared(cache, blob) == blob.data.tobytes()


def test_later_changes_do_not_reach_a_blob(encoder: Encoder) -> None:
    """What is done to an array after it was encoded reaches neither blob nor reader."""
    for array in (LARGE.copy(), LARGE[:10].copy()):
        blob = encoder.encode("rl_module/p", {"w": array}, None)
        expected = encode({"w": array}).tobytes()
        array[:] = -1
        assert blob.data.tobytes() == expected


def test_a_value_that_can_not_be_published(encoder: Encoder, shared_memory: Path) -> None:
    """A refused component takes no memory, and what was there stays."""
    before = encoder.encode("rl_module/p", {"w": LARGE}, None)
    with pytest.raises(EncodeError, match="rl_module/p/f"):
        encoder.encode("rl_module/p", {"w": LARGE, "f": object()}, before)
    assert before.data.tobytes() == encode({"w": LARGE}).tobytes()
    assert len(files(shared_memory)) == 1


def test_a_thousand_states(encoder: Encoder, shared_memory: Path) -> None:
    """A learner that changes all of it each time writes to the same few files."""
    before: Blob | None = None
    for number in range(100):
        before = encoder.encode("rl_module/p", {"w": LARGE + number}, before)
        before.share("n")
        assert len(files(shared_memory)) <= 2


def test_close(encoder: Encoder, cache: NodeCache) -> None:
    """What was encoded stays as it is, shared or not, when the encoder is closed."""
    blob = encoder.encode("rl_module/p", {"w": LARGE}, None)
    encoder.close()
    blob.share("n")
    assert shared(cache, blob) == encode({"w": LARGE}).tobytes()
    after = encoder.encode("rl_module/p", {"w": LARGE + 1}, blob)
    after.share("n")
    assert after.data.tobytes() == encode({"w": LARGE + 1}).tobytes()
    assert shared(cache, after) is None
