"""msgpack of unknown origin: what it may hold, and what it may cost."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from redis_state_sync.errors import DecodeError
from redis_state_sync.untrusted import has_more_items, unpack
from tests.unit.bounds import assert_linear, most_memory, peak_memory, tried

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text()
    | st.binary() | st.sampled_from([31, 32, 255, 256, 65535, 65536]).map(lambda n: "x" * n)
    | st.sampled_from([255, 256, 65535, 65536]).map(bytes),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=40), inner, max_size=4)
        | st.sampled_from([15, 16]).map(lambda n: [None] * n)
        | st.sampled_from([15, 16]).map(lambda n: {str(i): i for i in range(n)})
    ),
    max_leaves=8,
)  # fmt: skip


def count(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + sum(1 + count(inner) for inner in value.values())
    return 1 + sum(map(count, value)) if isinstance(value, list) else 1


@given(values)
@example([None] * 65535)
@example([None] * 65536)
@example({str(i): i for i in range(65536)})
def test_items_are_counted(value: Any) -> None:
    """Every item of msgpack is counted once, whatever its form and length: C58."""
    data, items = msgpack.packb(value), count(value)
    assert not has_more_items(data, items)
    assert items == 1 or has_more_items(data, items - 1)
    if len(data) > items:
        unpack(data, "it", max_items=items)
        with pytest.raises(DecodeError, match=f"it holds more than {items - 1} items"):
            unpack(data, "it", max_items=items - 1)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\xc0\xc0",
        b"\xdd\xff\xff\xff\xff" + bytes(100),
        b"\xdf\xff\xff\xff\xff" + bytes(100),
        b"\xdb\xff\xff\xff\xff" + bytes(100),
        b"\xc6\xff\xff\xff\xff" + bytes(100),
        b"\x92\xc0",
        b"\x81\xa1k",
        b"\x81\x05\xc0",
        b"\x81\xc0\xc0",
        b"\x81\x90\xc0",
        b"\xa2\xff\xfe",
        b"\xa3\xed\xa0\x80",
        b"\x91" * 5000 + b"\xc0",
    ],
    ids=lambda data: data[:8].hex(),
)
def test_refuses(data: bytes) -> None:
    """Cut, announced too long, keys that are no text, surrogates, deep nesting: refused: C58."""
    with pytest.raises(DecodeError):
        unpack(data, "it")


@pytest.mark.parametrize(
    "data",
    [
        msgpack.packb(msgpack.ExtType(5, b"")),
        msgpack.packb(msgpack.ExtType(5, b"x")),
        msgpack.packb([1, msgpack.ExtType(127, bytes(300))]),
        msgpack.packb(msgpack.Timestamp(0)),
        msgpack.packb(msgpack.Timestamp(2**40, 5)),
        b"\xc7\x00\xff",
        b"\x81" + msgpack.packb(msgpack.Timestamp(1)) + b"\xc0",
    ],
    ids=lambda data: data[:8].hex(),
)
def test_extension_types_are_refused(data: bytes) -> None:
    """Extension types, timestamps among them, are refused: nothing of ours uses them: C48."""
    with pytest.raises(DecodeError):
        unpack(data, "it")


@pytest.mark.parametrize(
    "item", [b"\x90", b"\x80", b"\xd0\x80", b"\xa2ab", b"\x91\x90"], ids=bytes.hex
)
def test_a_bomb_of_small_items(item: bytes) -> None:
    """Many of the items that take most memory for their size are refused before they do: C58."""

    def bomb(number: int) -> bytes:
        return b"\xdd" + number.to_bytes(4, "big") + item * number

    with pytest.raises(DecodeError, match="more than 1048576 items"):
        unpack(bomb(1 << 21), "it")
    most, many, few = 1 << 17, bomb(1 << 18), bomb(1 << 16)
    assert peak_memory(tried(lambda d: unpack(d, "it", max_items=most), many)) < 3 * len(many)
    assert peak_memory(tried(lambda d: unpack(d, "it", max_items=most), few)) < most_memory(
        len(few), most
    )


def test_counting_is_linear() -> None:
    """Twice as many items take twice as long to count, until there are too many: C58."""

    def make(size: int) -> Any:
        data = b"\xdd" + size.to_bytes(4, "big") + b"\x05" * size
        return lambda: has_more_items(data, size)

    assert_linear(make, 50_000)
