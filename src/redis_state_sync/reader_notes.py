"""What a reader notes about itself with each fetch, for `status`: ``version milliseconds``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from redis_state_sync.errors import VersionError
from redis_state_sync.keys import RESEND
from redis_state_sync.version import Version

Text = TypeVar("Text", str, bytes)


def note_of(version: Version, time_ms: int) -> str:
    """The note of a reader that has just fetched a version.

    Args:
        version: Which one.
        time_ms: When, by the reader's clock, in ms since 1970.
    """
    return f"{version} {time_ms}"


def read_note(note: str) -> tuple[Version, int] | None:
    """The version and the time in ms of a note; None if it is none."""
    version, _, moment = note.partition(" ")
    if not _is_time(moment):
        return None
    try:
        return Version.parse(version), int(moment)
    except VersionError:
        return None


def outdated(notes: Mapping[Text, Text], now_ms: int, ttl_s: float) -> list[Text]:
    """Readers that are gone: that were not heard of for long, or whose note can not be read.

    Args:
        notes: Reader -> its note, as the store has them.
        now_ms: In ms since 1970.
        ttl_s: Seconds for which a note counts: more than clocks differ.

    Returns:
        Their names; what is no reader's name is left out.
    """
    return [
        reader
        for reader, note in notes.items()
        if _text(reader) != RESEND and not _is_recent(_text(note), now_ms, ttl_s * 1000)
    ]


def _is_recent(note: str, now_ms: int, ttl_ms: float) -> bool:
    _, _, moment = note.partition(" ")
    return _is_time(moment) and abs(now_ms - int(moment)) <= ttl_ms


def _is_time(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 20


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
