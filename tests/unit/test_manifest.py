"""The manifest of a version, from bytes of unknown origin."""

from __future__ import annotations

import tracemalloc

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_state_sync.components import is_name
from redis_state_sync.errors import DecodeError, EncodeError
from redis_state_sync.manifest import Component, Manifest, Piece, Writer, digest_of

pieces = st.builds(Piece, st.binary(min_size=16, max_size=16).map(bytes.hex), st.integers(0, 2**29))
names = st.text(min_size=1, max_size=8).filter(is_name)
manifests = st.builds(
    Manifest,
    st.builds(Writer, st.text(max_size=8), st.text(max_size=8), st.integers(0, 2**22)),
    st.integers(0, 2**50),
    st.dictionaries(names, st.builds(Component, st.lists(pieces, max_size=3).map(tuple))),
    st.none() | st.integers(0, 2**63 - 1),
)


@given(manifests)
def test_round_trip(manifest: Manifest) -> None:
    """What was encoded is decoded to the same manifest."""
    assert Manifest.decode(manifest.encode()) == manifest


def test_digests_are_named_once() -> None:
    """A blob that two components share is named once: it is sent once: C42."""
    piece = Piece("0" * 32, 5)
    manifest = Manifest(
        Writer("w", "h", 1), 0, {"a": Component((piece,)), "b": Component((piece,))}
    )
    assert manifest.digests() == {"0" * 32: 5}


@given(st.binary(max_size=200))
def test_random_bytes(data: bytes) -> None:
    """Bytes that are no manifest are a DecodeError, never another exception: C58."""
    with pytest.raises(DecodeError):
        Manifest.decode(data)


VALID = Manifest(Writer("w", "h", 1), 7, {"c": Component((Piece("0" * 32, 5),))}, 3).encode()


@given(st.integers(0, len(VALID) - 1), st.integers(0, 7))
def test_flipped_bits(position: int, bit: int) -> None:
    """A flipped bit gives a manifest or a DecodeError, never another exception: C58."""
    data = bytearray(VALID)
    data[position] ^= 1 << bit
    try:
        Manifest.decode(bytes(data))
    except DecodeError:
        pass


@pytest.mark.parametrize("length", range(len(VALID)))
def test_truncated(length: int) -> None:
    """A manifest that was cut off anywhere is a DecodeError: C58."""
    with pytest.raises(DecodeError):
        Manifest.decode(VALID[:length])


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"format": "1"},
        {"writer": ["w", "h"]},
        {"writer": ["w", "h", "1"]},
        {"time_ms": None},
        {"weights_seq_no": "3"},
        {"components": []},
        {"components": {"c": {}}},
        {"components": {"c": [["0" * 31, 5]]}},
        {"components": {"c": [["G" * 32, 5]]}},
        {"components": {"c": [["0" * 32, -1]]}},
        {"components": {"c": [["0" * 32, 2**41]]}},
        {"components": {"c": [["0" * 32, 2**39]] * 3}},
        {"components": {7: []}},
    ],
)
def test_ill_formed_fields(change: dict[str, object]) -> None:
    """A field of the wrong type, shape or size is a DecodeError: C48, C58."""
    raw = msgpack.unpackb(VALID)
    with pytest.raises(DecodeError):
        Manifest.decode(msgpack.packb({**raw, **change}))


def test_nested_headers_ask_for_no_memory() -> None:
    """Nested array headers that announce items which are not there cost no memory: C58."""
    data = (b"\xdd" + (100_000).to_bytes(4, "big")) * 500 + bytes(200_000)
    tracemalloc.start()
    with pytest.raises(DecodeError):
        Manifest.decode(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 * len(data)


def test_another_format_is_named() -> None:
    """A manifest of a later format says which, so that a user knows what to upgrade."""
    raw = msgpack.unpackb(VALID)
    with pytest.raises(DecodeError, match="format 9"):
        Manifest.decode(msgpack.packb({**raw, "format": 9}))


def test_a_manifest_has_a_limit() -> None:
    """A manifest beyond the limit is refused when published, and unread when received."""
    with pytest.raises(EncodeError):
        Manifest(Writer("w" * (16 << 20), "h", 1), 0).encode()
    with pytest.raises(DecodeError, match="too large"):
        Manifest.decode(bytes((16 << 20) + 1))


def test_digests_tell_blobs_apart() -> None:
    """A digest is 32 hexadecimal digits and changes with one bit."""
    assert len(digest_of(b"x")) == 32
    assert digest_of(b"x") != digest_of(b"y")
    assert digest_of(b"x") == digest_of(memoryview(b"x"))
