"""Signing keys: from file or environment, rotated while all goes on, never shown."""

from __future__ import annotations

import pickle
import traceback
from pathlib import Path

import pytest

from redis_state_sync import Keyring, SettingsError
from redis_state_sync.errors import SignatureError
from redis_state_sync.keyring import KEY_ENV, KEY_FILE_ENV, find_keyring

OLD, NEW = "old-" + "0" * 32, "new-" + "1" * 32


def ring(*keys: str) -> Keyring:
    return Keyring(lambda: "\n".join(keys))


def test_sign_and_verify() -> None:
    """What one process signs, another with the same key accepts."""
    key_id, signature = ring(OLD).sign(b"message")
    ring(OLD).verify(key_id, signature, b"message")


@pytest.mark.parametrize("change", ["message", "signature", "id", "key"])
def test_anything_changed_is_refused(change: str) -> None:
    """A changed message, a changed signature or another key is no signature."""
    key_id, signature = ring(OLD).sign(b"message")
    message = b"messagf" if change == "message" else b"message"
    signature = bytes(32) if change == "signature" else signature
    key_id = "0" * 16 if change == "id" else key_id
    with pytest.raises(SignatureError):
        ring(NEW if change == "key" else OLD).verify(key_id, signature, message)


def test_another_key_under_the_same_id_is_refused() -> None:
    """The id only says which key to try."""
    key_id, _ = ring(OLD).sign(b"message")
    _, forged = ring(NEW).sign(b"message")
    with pytest.raises(SignatureError, match="wrong"):
        ring(OLD).verify(key_id, forged, b"message")


def test_a_file_from_an_editor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte order mark and other line ends are no part of a key."""
    file = tmp_path / "keys"
    file.write_bytes(b"\xef\xbb\xbf" + OLD.encode() + b"\r\n" + NEW.encode() + b"\r\n")
    monkeypatch.setenv(KEY_FILE_ENV, str(file))
    found = find_keyring()
    assert found is not None
    assert found.sign(b"message") == ring(OLD).sign(b"message")


def test_no_local_variable_shows_a_key() -> None:
    """Printers that show the local variables of our frames show no key, too short or in use."""
    short = "hunter2"
    with pytest.raises(SettingsError) as too_short:
        Keyring(lambda: short)
    key_id, _ = ring(OLD).sign(b"message")
    with pytest.raises(SignatureError) as wrong:
        ring(OLD).verify(key_id, bytes(32), b"message")
    for caught in (too_short, wrong):
        frames = [frame.f_locals for frame, _ in traceback.walk_tb(caught.value.__traceback__)][1:]
        assert frames
        assert short not in repr(frames)
        assert OLD not in repr(frames)


def test_rotation(tmp_path: Path) -> None:
    """Keys are read anew: a second one is accepted, then signs, and the first one goes."""
    learner, reader = tmp_path / "learner", tmp_path / "reader"

    def read(path: Path) -> Keyring:
        return Keyring(path.read_text)

    learner.write_text(OLD)
    reader.write_text(OLD)
    signing, checking = read(learner), read(reader)
    for learners, readers in (
        ([OLD], [OLD, NEW]),
        ([NEW, OLD], [OLD, NEW]),
        ([NEW], [NEW, OLD]),
        ([NEW], [NEW]),
    ):
        learner.write_text("\n".join(learners) + "\n")
        reader.write_text("\n".join(readers) + "\n")
        checking.verify(*signing.sign(b"message"), b"message")
    with pytest.raises(SignatureError, match="rotated"):
        checking.verify(*ring(OLD).sign(b"message"), b"message")


@pytest.mark.parametrize("text", ["", " \n\n", "short", f"{OLD}\nshort"])
def test_bad_keys(text: str) -> None:
    """No key, or one that can be guessed, is an error that names the remedy and shows nothing."""
    with pytest.raises(SettingsError, match=f"{KEY_FILE_ENV}|openssl") as caught:
        Keyring(lambda: text)
    assert "short" not in str(caught.value).replace("shorter", "")
    assert OLD not in str(caught.value)


def test_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without keys nothing is signed; the file goes before the variable."""
    monkeypatch.delenv(KEY_ENV, raising=False)
    monkeypatch.delenv(KEY_FILE_ENV, raising=False)
    assert find_keyring() is None
    with pytest.raises(SettingsError, match=KEY_FILE_ENV):
        find_keyring(required=True)
    monkeypatch.setenv(KEY_ENV, OLD)
    found = find_keyring()
    assert found is not None
    found.verify(*ring(OLD).sign(b"m"), b"m")
    path = tmp_path / "keys"
    path.write_text(NEW)
    monkeypatch.setenv(KEY_FILE_ENV, str(path))
    found.verify(*ring(NEW).sign(b"m"), b"m")
    path.unlink()
    with pytest.raises(SettingsError, match="can not be read"):
        found.sign(b"m")


def test_it_shows_no_key_and_travels_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither repr nor pickle hold a key; another process reads its own."""
    monkeypatch.setenv(KEY_ENV, OLD)
    found = find_keyring(required=True)
    data = pickle.dumps(found)
    assert OLD.encode() not in data
    assert OLD not in repr(found)
    monkeypatch.setenv(KEY_ENV, NEW)
    pickle.loads(data).verify(*ring(NEW).sign(b"m"), b"m")
