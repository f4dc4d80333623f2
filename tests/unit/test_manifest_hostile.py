"""A forged manifest: what it may name, and what it may cost before anything is fetched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_state_sync import StatePublisher
from redis_state_sync.components import is_name
from redis_state_sync.errors import DecodeError, EncodeError, SettingsError
from redis_state_sync.manifest import (
    MAX_MANIFEST_BYTES,
    MAX_MANIFEST_ITEMS,
    MAX_PIECES,
    Component,
    Manifest,
    Piece,
    Writer,
)
from redis_state_sync.memory_store import MemoryStore
from tests.unit.bounds import assert_linear, cpu_seconds, most_memory, peak_memory, tried

DIGEST = "0" * 32
RAW: dict[str, Any] = msgpack.unpackb(
    Manifest(Writer("w", "h", 1), 7, {"c": Component((Piece(DIGEST, 5),))}, 3).encode()
)


def forged(**changes: Any) -> bytes:
    return bytes(msgpack.packb({**RAW, **changes}))


BAD_NAMES = {
    "empty": "",
    "parent": "../etc/passwd",
    "parent within": "rl_module/../../x",
    "only parents": "..",
    "absolute": "/etc/passwd",
    "newline": "rl_module/a\nb",
    "carriage return": "a\rb",
    "NUL": "rl_module/a\0",
    "escape": "\x1b[2Jrl_module/a",
    "bell": "\a",
    "delete": "\x7f",
    "bidi": "rl_module/\u202egnp.a",
    "line separator": "a\u2028b",
    "zero width": "a\u200bb",
    "byte order mark": "\ufeffa",
    "private use": "\ue000",
    "long": "x" * 513,
    "very long": "x" * (1 << 20),
}
GOOD_NAMES = [
    "c",
    "rl_module/p0",
    "rl_module/team a/left",
    "extra/{braces}",
    "rl_module/..a",
    "rl_module/ä€𝄞",
    "env_to_module_connector",
    "x" * 512,
    "rl_module/*?[",
]


@pytest.mark.parametrize("name", BAD_NAMES.values(), ids=BAD_NAMES)
def test_names_that_escape(name: str) -> None:
    """Names that are empty, long, unprintable or lead upwards are refused at both ends: C58."""
    with pytest.raises(DecodeError, match="ill-formed name") as caught:
        Manifest.decode(forged(components={"good": [], name: []}))
    assert len(str(caught.value)) < 300
    assert str(caught.value).isprintable()
    publisher = StatePublisher(MemoryStore(), "n", heartbeat_s=3600)
    with pytest.raises(EncodeError, match="component name") as refused:
        publisher.publish({name: 1})
    assert len(str(refused.value)) < 600
    publisher.close()


@pytest.mark.parametrize("name", GOOD_NAMES, ids=lambda name: name[:20])
def test_names_that_do_not(name: str) -> None:
    """Names with slashes, spaces, braces or letters of any script are as good as others."""
    assert list(Manifest.decode(forged(components={name: []})).components) == [name]
    publisher = StatePublisher(MemoryStore(), "n", heartbeat_s=3600)
    publisher.publish({name: 1}).wait(20)
    publisher.close()


@given(st.text(max_size=20))
def test_names_are_judged_alike(name: str) -> None:
    """What `is_name` takes and what the decoder takes is the same."""
    if "\ud800" <= max(name, default="") <= "\udfff" or not _encodes(name):
        assert not is_name(name)
        return
    try:
        Manifest.decode(forged(components={name: []}))
    except DecodeError:
        assert not is_name(name)
    else:
        assert is_name(name)


def _encodes(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


@pytest.mark.parametrize("name", [b"c", 5, None, True])
def test_names_of_other_types(name: Any) -> None:
    """A name that is no text is refused: C58."""
    with pytest.raises(DecodeError):
        Manifest.decode(msgpack.packb({**RAW, "components": {name: []}}))


@pytest.mark.parametrize(
    "change",
    [
        {"weights_seq_no": -1},
        {"weights_seq_no": 2**63},
        {"weights_seq_no": 2**64 - 1},
        {"weights_seq_no": True},
        {"weights_seq_no": False},
        {"weights_seq_no": 1.0},
        {"weights_seq_no": float("nan")},
        {"time_ms": -1},
        {"time_ms": 2**63},
        {"time_ms": False},
        {"time_ms": float("inf")},
        {"writer": ["w", "h", -1]},
        {"writer": ["w", "h", True]},
        {"writer": ["w", "h", 2**63]},
        {"writer": ["w" * 1025, "h", 1]},
        {"writer": ["w", "h" * 1025, 1]},
        {"writer": ["w", "h", 1, 1]},
        {"writer": {"w": 1}},
        {"writer": "whp"},
        {"components": {"c": "ab"}},
        {"components": {"c": [DIGEST]}},
        {"components": {"c": [[DIGEST, 5, 5]]}},
        {"components": {"c": [[DIGEST.encode(), 5]]}},
        {"components": {"c": [[DIGEST, True]]}},
        {"components": {"c": [[DIGEST, 5.0]]}},
        {"components": {"c": [[DIGEST, float("nan")]]}},
        {"components": {"c": [[DIGEST, -5]]}},
        {"components": {"c": [[DIGEST, (512 << 20) + 1]]}},
        {"components": {"c": [[DIGEST, 2**64 - 1]]}},
        {"components": {"c": [["0" * 31 + "\n", 5]]}},
        {"components": {"c": [["0" * 32 + "\n", 5]]}},
        {"components": {"c": [["A" * 32, 5]]}},
        {"components": {"c": [["٠" * 32, 5]]}},
        {"components": {"c": [["../" * 10 + "00", 5]]}},
    ],
    ids=lambda change: str(change)[:50],
)
def test_numbers_and_texts(change: dict[str, Any]) -> None:
    """Numbers out of range, bools, floats, long writers and odd digests are refused: C58."""
    with pytest.raises(DecodeError):
        Manifest.decode(forged(**change))


def test_a_key_that_occurs_twice() -> None:
    """Of a key that occurs twice only one counts, and it is checked: C58."""
    two = forged()[:-1].replace(
        b"\x81\xa1c", b"\x82\xa1c\x91\x92\xd9\x20" + b"f" * 32 + b"\x05\xa1c"
    )
    data = two + forged()[-1:]
    assert list(Manifest.decode(data).digests()) == [DIGEST]


def pieces(number: int) -> bytes:
    return forged(components={"c": [[DIGEST, 1 << 20]] * number})


def components(number: int) -> bytes:
    return forged(components={f"{i:05}": [] for i in range(number)})


def lists(number: int) -> bytes:
    return forged(junk=[[]] * number)


MANY: dict[str, Callable[[int], bytes]] = {
    "pieces": pieces, "components": components, "lists": lists,
    "numbers": lambda number: forged(junk=[-100] * number),
    "long name": lambda number: forged(components={"x" * number: []}),
    "wide text": lambda number: forged(junk="a" * number + "\U0001f600"),
}  # fmt: skip


@pytest.mark.parametrize("make", MANY.values(), ids=MANY)
def test_memory_and_time(make: Callable[[int], bytes]) -> None:
    """Memory and time are in proportion to a manifest's length, whatever it holds: C58."""
    data = make(20_000)
    most = most_memory(len(data), MAX_MANIFEST_ITEMS)
    assert peak_memory(tried(Manifest.decode, data)) <= most
    assert_linear(lambda size: tried(Manifest.decode, make(size)), 3_000)


def test_ten_million_pieces() -> None:
    """A manifest of more pieces than the limit is refused by its length, items or number: C58."""
    assert Manifest.decode(pieces(MAX_PIECES)).size == MAX_PIECES << 20
    with pytest.raises(DecodeError, match=f"more than {MAX_PIECES} blobs"):
        Manifest.decode(pieces(MAX_PIECES + 1))
    with pytest.raises(DecodeError, match=f"more than {MAX_PIECES} blobs"):
        Manifest.decode(forged(components={str(i): [[DIGEST, 1]] * 700 for i in range(100)}))
    with pytest.raises(DecodeError, match=f"more than {MAX_MANIFEST_ITEMS} items"):
        Manifest.decode(lists(MAX_MANIFEST_ITEMS))
    with pytest.raises(DecodeError, match="too large"):
        Manifest.decode(pieces(1_000_000))


@pytest.mark.parametrize("number", [MAX_PIECES + 1, 100_000])
def test_the_largest_manifests_are_refused_soon(number: int) -> None:
    """The costliest manifests take a part of a second of a reader's time: C58."""
    for data in (pieces(number), components(number // 2), lists(MAX_MANIFEST_BYTES - 200)):
        assert cpu_seconds(tried(Manifest.decode, data)) < 3  # 0.1 s on an idle machine


def test_an_unprintable_writer_is_quoted() -> None:
    """Host and id of a forged writer can not write control characters into a message."""
    assert str(Manifest.decode(forged(writer=["\x1b[2J", "a\nb", 1])).writer).isprintable()


def test_a_long_writer_id_is_refused_at_once() -> None:
    """A learner whose own manifests no reader would take fails when it is made."""
    with pytest.raises(SettingsError, match="writer_id is longer than 1024"):
        StatePublisher(MemoryStore(), "n", writer_id="w" * 1025)
