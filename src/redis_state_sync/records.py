"""A version's record in the stream: the manifest, in a signed envelope if there is a key.

The signature covers namespace, version and manifest, and the manifest names every blob by a
cryptographic digest: no part can be replaced, and none be shown as another version.
"""

from __future__ import annotations

from typing import Any

import msgpack

from redis_state_sync.errors import DecodeError, SignatureError
from redis_state_sync.keyring import Keyring
from redis_state_sync.keys import Keys
from redis_state_sync.manifest import BLAKE2B, MAX_MANIFEST_BYTES, XXH3, Manifest
from redis_state_sync.store import Entry
from redis_state_sync.untrusted import unpack
from redis_state_sync.version import Version

_ENVELOPE = "rss-hmac-sha256"
_ENVELOPE_ITEMS = 8
_ENVELOPE_BYTES = 1 << 10


class Records:
    """Writes and reads the records of one namespace.

    Args:
        keys: Of which namespace.
        keyring: Signs what is written and is asked about all that is read. None: nothing is
            signed, and signed records are read without a check.
    """

    def __init__(self, keys: Keys, keyring: Keyring | None) -> None:
        self._namespace = keys.namespace
        self._keyring = keyring

    @property
    def keyring(self) -> Keyring | None:
        """What signs and checks, if anything does."""
        return self._keyring

    @property
    def algorithm(self) -> str:
        """How blobs are named. A signature needs digests that nobody can find a second blob for."""
        return XXH3 if self._keyring is None else BLAKE2B

    def seal(self, version: Version, manifest: Manifest) -> bytes:
        """The bytes to store.

        Raises:
            EncodeError: If they are too long.
            SettingsError: If the signing key can not be read.
        """
        data = manifest.encode()
        if self._keyring is None:
            return data
        key_id, signature = self._keyring.sign(self._message(version, data))
        sealed: bytes = msgpack.packb([_ENVELOPE, key_id, signature, data])
        return sealed

    def open(self, entry: Entry) -> Manifest:
        """Reads what is stored, of unknown origin.

        Raises:
            SignatureError: If there is a keyring, and the record is unsigned, wrongly signed, or
                was signed for another version or namespace.
            DecodeError: If it is not a record.
            SettingsError: If the signing key can not be read.
        """
        match _outer(entry.manifest):
            case [str(key_id), bytes(signature), bytes(data)]:
                if self._keyring is not None:
                    self._keyring.verify(key_id, signature, self._message(entry.version, data))
            case _ if self._keyring is not None:
                raise SignatureError("the record is not signed")
            case _:
                data = entry.manifest
        manifest = Manifest.decode(data)
        if self._keyring is not None and manifest.algorithm != BLAKE2B:
            raise SignatureError(f"digests of {manifest.algorithm} do not bind what is signed")
        return manifest

    def _message(self, version: Version, data: bytes) -> bytes:
        message: bytes = msgpack.packb([_ENVELOPE, self._namespace, str(version), data])
        return message


def is_signed(record: bytes) -> bool:
    """Whether a record bears a signature, right or wrong.

    Raises:
        DecodeError: If it is in an unknown envelope.
    """
    return _outer(record) is not None


def _outer(record: bytes) -> list[Any] | None:
    """What an envelope holds; None if the record is none."""
    first = record[:1]
    if first != b"\x94":  # A msgpack array of four; a plain manifest is a map.
        return None
    if len(record) > MAX_MANIFEST_BYTES + _ENVELOPE_BYTES:
        raise DecodeError("record is too large")
    match unpack(record, "record", max_items=_ENVELOPE_ITEMS):
        case [str(kind), *parts] if kind == _ENVELOPE:
            return parts
        case _:
            raise DecodeError("record in an unknown envelope; is this package too old for it?")
