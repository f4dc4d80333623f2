"""Shared keys that sign manifests: whoever lacks one can not pass a state off as the learner's.

HMAC-SHA256, https://www.rfc-editor.org/rfc/rfc2104. The text with the keys holds one key a line;
the first one signs, and every one is accepted, so that keys can be rotated while all goes on:
add the new key as second line everywhere, then make it the first, then drop the old one.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Callable
from pathlib import Path

from redis_state_sync.errors import SettingsError, SignatureError

KEY_ENV = "REDIS_STATE_SYNC_SIGNING_KEY"
KEY_FILE_ENV = "REDIS_STATE_SYNC_SIGNING_KEY_FILE"
_SHORTEST = 32
_REMEDY = f"{KEY_FILE_ENV} names a file with one, {KEY_ENV} holds one"


class Keyring:
    """Signs and verifies. Reads its keys anew each time, so that rotated ones are picked up.

    Holds no key between calls: it can be copied, pickled and printed.

    Args:
        read: Returns the text with the keys: each a line of at least 32 characters, such as
            ``openssl rand -hex 32`` makes.

    Raises:
        SettingsError: If there is no key, or one that is too short.
    """

    def __init__(self, read: Callable[[], str]) -> None:
        self._read = read
        self._keys()

    def __repr__(self) -> str:
        return "Keyring(<redacted>)"

    def sign(self, message: bytes) -> tuple[str, bytes]:
        """Signs with the first key.

        Returns:
            The key's id (16 hexadecimal digits) and the signature (32 bytes).
        """
        key_id, key = next(iter(self._keys().items()))
        return key_id, hmac.digest(key, message, "sha256")

    def verify(self, key_id: str, signature: bytes, message: bytes) -> None:
        """Checks a signature.

        Raises:
            SignatureError: If it is not one of these keys'.
        """
        key = self._keys().get(key_id)
        if key is None:
            raise SignatureError(
                f"signed with a key that this process does not have (key id {key_id[:16]!r}); "
                "while keys are rotated, every process needs both"
            )
        right = hmac.compare_digest(hmac.digest(key, message, "sha256"), signature)
        del key  # Printers that show local variables would show it.
        if not right:
            raise SignatureError("the signature is wrong: forged, or of another version")

    def _keys(self) -> dict[str, bytes]:
        keys = [line.strip().encode() for line in self._read().splitlines() if line.strip()]
        if not keys:
            raise SettingsError(f"there is no signing key: {_REMEDY}")
        if min(map(len, keys)) < _SHORTEST:
            keys.clear()  # Printers that show local variables would show them.
            raise SettingsError(
                f"a signing key is shorter than {_SHORTEST} characters: make one by "
                "'openssl rand -hex 32', one key a line"
            )
        return {_id_of(key): key for key in keys}


def find_keyring(*, required: bool = False) -> Keyring | None:
    """The keyring that the environment names: the file before the variable.

    Args:
        required: Whether it is an error if it names none.

    Returns:
        The keyring, or None: nothing is signed then, and no signature is checked.

    Raises:
        SettingsError: If it is required and missing, or can not be read.
    """
    if required or os.environ.get(KEY_FILE_ENV) or os.environ.get(KEY_ENV):
        return Keyring(_from_environment)
    return None


def _from_environment() -> str:
    path = os.environ.get(KEY_FILE_ENV)
    if not path:
        return os.environ.get(KEY_ENV, "")
    try:
        return Path(path).read_text(encoding="utf-8-sig")  # A byte order mark is no part of a key.
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"{KEY_FILE_ENV} names {path!r}, which can not be read ({type(error).__name__})"
        ) from None


def _id_of(key: bytes) -> str:
    return hashlib.sha256(b"redis-state-sync key id\0" + key).hexdigest()[:16]
