"""What replies mean. Each function raises `TypeError` or `ValueError` for what is no such reply."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from redis_state_sync.store import Entry
from redis_state_sync.version import Version

FIELD = "manifest"
"""The one field of an entry of the stream."""
_LATEST_MS = 1 << 63


def entries(reply: Iterable[Any]) -> list[Entry]:
    """Of XREVRANGE: the entries, in the order of the reply."""
    return [Entry(Version.parse(entry_id), _manifest(fields)) for entry_id, fields in reply]


def _manifest(fields: Sequence[bytes]) -> bytes:
    if not all(isinstance(part, bytes) for part in fields):
        raise TypeError("fields that are no texts")
    if len(fields) == 2 and fields[0] == FIELD.encode():
        return fields[1]
    return b""  # Someone else's entry. Nobody can read it, and everybody looks past it.


def milliseconds(reply: Iterable[Any]) -> int:
    """Of TIME: ms since 1970."""
    seconds, microseconds = (int(_text(part)[:20]) for part in reply)
    found = seconds * 1000 + microseconds // 1000
    if not 0 <= found < _LATEST_MS:
        raise ValueError("a time far away")
    return found


def pairs(reply: Any) -> dict[bytes, bytes]:
    """Of HGETALL, which RESP2 answers with a flat list, RESP3 with a map."""
    found = reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))
    return {_text(name): _text(value) for name, value in found.items()}


def scanned(reply: Any) -> tuple[bytes, list[bytes]]:
    """Of SCAN: the next cursor, and keys."""
    cursor, found = reply
    return _text(cursor), [_text(key) for key in found]


def primaries(reply: Any) -> list[tuple[str, int]]:
    """Of CLUSTER SLOTS: host and port of each primary, once."""
    nodes = [slots[2] for slots in reply]
    return sorted({(_text(node[0]).decode(), int(node[1])) for node in nodes})


def server_version(reply: bytes) -> str:
    """Of INFO: kind and version of the server in a few words."""
    if not isinstance(reply, bytes):
        raise TypeError("no text")
    lines = reply.decode("utf-8", "replace").splitlines()
    facts = dict(line.split(":", 1) for line in lines if ":" in line)
    if "valkey_version" in facts:
        return f"Valkey {facts['valkey_version']}"
    return f"Redis {facts.get('redis_version', 'of unknown version')}"


def _text(reply: Any) -> bytes:
    if not isinstance(reply, bytes):
        raise TypeError(f"a {type(reply).__name__} in place of a text")
    return reply
