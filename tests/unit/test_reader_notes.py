"""Which readers are gone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_state_sync.keys import RESEND
from redis_state_sync.reader_notes import note_of, outdated
from redis_state_sync.version import Version

NOW_MS, TTL_S = 1_700_000_000_000, 60.0


@pytest.mark.parametrize(
    ("note", "gone"),
    [
        (note_of(Version(5, 7), NOW_MS), False),
        (f"5-7 {NOW_MS - 60_000}", False),
        (f"5-7 {NOW_MS - 60_001}", True),
        (f"5-7 {NOW_MS + 60_000}", False),
        (f"5-7 {NOW_MS + 60_001}", True),  # a clock that is far ahead must not keep a note for ever
        ("5-7 ", True),
        ("5-7", True),
        ("", True),
        ("5-7 soon", True),
        (f"5-7 {'9' * 5000}", True),
        ("5-7 ²", True),
    ],
)
@pytest.mark.parametrize("as_bytes", [False, True])
def test_outdated(note: str, gone: bool, as_bytes: bool) -> None:
    """A note counts for so long before and after now; one that can not be read does not."""
    notes: dict[Any, Any] = {"me": note, RESEND: "0" * 32}
    if as_bytes:
        notes = {k.encode(): v.encode() for k, v in notes.items()}
    names = [b"me" if as_bytes else "me"]
    assert outdated(notes, NOW_MS, TTL_S) == (names if gone else [])


@given(st.dictionaries(st.binary(max_size=9), st.binary(max_size=20)))
def test_anything_may_be_there(notes: dict[bytes, bytes]) -> None:
    """Whatever somebody wrote into the hash is judged without an error."""
    assert set(outdated(notes, NOW_MS, TTL_S)) <= notes.keys()
