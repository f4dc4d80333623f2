"""Records: manifests in a signed envelope, or plain ones."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_state_sync import CodecError, Keyring, Version
from redis_state_sync.errors import SignatureError
from redis_state_sync.keys import Keys
from redis_state_sync.manifest import BLAKE2B, XXH3, Component, Manifest, Piece, Writer
from redis_state_sync.records import Records
from redis_state_sync.store import Entry

VERSION = Version(7, 3)
KEYRING = Keyring(lambda: "k" * 32)
PLAIN = Records(Keys("n"), None)
SIGNED = Records(Keys("n"), KEYRING)


def manifest(records: Records) -> Manifest:
    component = Component((Piece("ab" * 16, 5),))
    return Manifest(
        Writer("w", "h", 1), 9, {"rl_module/p": component}, 3, algorithm=records.algorithm
    )


SEALED = SIGNED.seal(VERSION, manifest(SIGNED))


@pytest.mark.parametrize("records", [PLAIN, SIGNED])
def test_round_trip(records: Records) -> None:
    """What is sealed is what is opened."""
    record = records.seal(VERSION, manifest(records))
    assert records.open(Entry(VERSION, record)) == manifest(records)


def test_names_of_blobs() -> None:
    """A signature goes with digests for which nobody can find a second blob."""
    assert (PLAIN.algorithm, SIGNED.algorithm) == (XXH3, BLAKE2B)
    weak = SIGNED.seal(VERSION, manifest(PLAIN))
    with pytest.raises(SignatureError, match="xxh3"):
        SIGNED.open(Entry(VERSION, weak))


def test_without_a_key_nothing_is_checked() -> None:
    """A reader that was given no key reads signed states as it reads others."""
    assert PLAIN.open(Entry(VERSION, SEALED)) == manifest(SIGNED)


def test_unsigned_is_refused() -> None:
    """A plain manifest is no record for who has a key."""
    with pytest.raises(SignatureError, match="not signed"):
        SIGNED.open(Entry(VERSION, PLAIN.seal(VERSION, manifest(SIGNED))))


@pytest.mark.parametrize("version", [Version(7, 4), Version(8, 3), Version(7, 0)])
def test_replayed_as_another_version_is_refused(version: Version) -> None:
    """A signed record counts for the version that it was signed for alone."""
    with pytest.raises(SignatureError, match="another version"):
        SIGNED.open(Entry(version, SEALED))


def test_replayed_in_another_namespace_is_refused() -> None:
    """A signed record counts in its namespace alone."""
    with pytest.raises(SignatureError):
        Records(Keys("n2"), KEYRING).open(Entry(VERSION, SEALED))


def test_another_key_is_refused() -> None:
    """Who has another key has none."""
    other = Records(Keys("n"), Keyring(lambda: "other" + "k" * 32))
    with pytest.raises(SignatureError, match="does not have"):
        SIGNED.open(Entry(VERSION, other.seal(VERSION, manifest(other))))


@pytest.mark.parametrize("position", range(len(SEALED)))
def test_any_flipped_bit_is_refused(position: int) -> None:
    """No byte of a signed record can be changed."""
    data = bytearray(SEALED)
    data[position] ^= 1
    with pytest.raises(CodecError):
        SIGNED.open(Entry(VERSION, bytes(data)))


@pytest.mark.parametrize(
    "outer",
    [
        ["rss-hmac-sha256", "id", b"", b"", b""],
        ["rss-hmac-sha512", "id", b"x" * 32, b""],
        ["rss-hmac-sha256", b"id", b"x" * 32, b""],
        ["rss-hmac-sha256", "id", "x" * 32, b""],
        [1, 2, 3, 4],
    ],
)
@pytest.mark.parametrize("records", [PLAIN, SIGNED])
def test_other_envelopes_are_refused(records: Records, outer: list[object]) -> None:
    """What looks like an envelope and is none is a `CodecError`, with a key and without."""
    with pytest.raises(CodecError):
        records.open(Entry(VERSION, msgpack.packb(outer)))


@given(st.binary(max_size=200))
def test_random_bytes(data: bytes) -> None:
    """Whatever the stream holds, nothing but a `CodecError` comes out."""
    for records in (PLAIN, SIGNED):
        for record in (data, b"\x94" + data):
            with pytest.raises(CodecError):
                records.open(Entry(VERSION, record))
