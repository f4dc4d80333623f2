"""Whatever bytes arrive, decoding gives a value or a DecodeError, within bounded memory."""

from __future__ import annotations

import pickle
import struct
import tracemalloc
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_state_sync.codec import MAGIC, decode, encode
from redis_state_sync.errors import DecodeError

TREE = {"w": np.arange(6, dtype=">f8").reshape(2, 3), 1: [None, (2**70, "x")], None: np.int8(3)}
VALID = bytes(encode(TREE))


def crafted(node: Any, buffers: bytes = b"") -> bytes:
    """A blob with any header."""
    header = msgpack.packb(node)
    start = MAGIC + struct.pack("<I", len(header)) + header
    return start + bytes(-len(start) % 64) + buffers


def tries(data: bytes) -> None:
    try:
        decode(data)
    except DecodeError:
        pass


@pytest.mark.parametrize("length", [*range(0, len(VALID) - 64, 7), len(VALID) - 64, 0, 1, 7, 8, 9])
def test_truncated(length: int) -> None:
    """A blob that was cut off is a DecodeError: C58."""
    with pytest.raises(DecodeError):
        decode(VALID[:length])


@given(st.integers(0, len(VALID) - 1), st.integers(0, 7))
def test_flipped_bits(position: int, bit: int) -> None:
    """A flipped bit never raises anything but a DecodeError: C58."""
    data = bytearray(VALID)
    data[position] ^= 1 << bit
    tries(bytes(data))


@given(st.binary(max_size=300))
def test_random_bytes(data: bytes) -> None:
    """Bytes without the magic are a DecodeError, with it a value or a DecodeError: C58."""
    if not data.startswith(MAGIC):
        with pytest.raises(DecodeError):
            decode(data)
    tries(MAGIC + struct.pack("<I", len(data)) + data)


def test_empty_array_as_blob() -> None:
    """An empty buffer of any kind is a DecodeError."""
    for nothing in (b"", bytearray(), memoryview(b""), np.empty(0, np.uint8)):
        with pytest.raises(DecodeError):
            decode(nothing)


NAMES = ["<f4", "|O", "<U9", "float32", "qint8", "quint4x2", "bits8", "complex32", "-1"]

headers = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats()
    | st.binary(max_size=9) | st.sampled_from([*"ltdasSzTix", *NAMES]),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(st.sampled_from(["columns", "itemsize", "aligned"]), inner)
        | st.tuples(st.sampled_from(["l", "t", "d"]), st.lists(inner, max_size=4)).map(list)
        | st.tuples(st.just("a"), inner, inner, st.booleans(), st.integers(-1, 80)).map(list)
        | st.tuples(st.just("T"), st.sampled_from(NAMES),
                    st.lists(st.integers(0, 2**47), max_size=3), st.integers(0, 9)).map(list)
        | st.tuples(st.just("s"), inner, st.binary(max_size=9)).map(list)
    ),
    max_leaves=8,
)  # fmt: skip


@given(headers)
@pytest.mark.filterwarnings("ignore")
def test_crafted_headers(node: Any) -> None:
    """A well-formed msgpack header of any content gives a value or a DecodeError: C48, C58."""
    tries(crafted(node, bytes(range(64))))


@pytest.mark.parametrize(
    "node",
    [
        {"a": 1},
        [],
        ["?", 1],
        [["l"], []],
        ["l", {}],
        ["d", [1]],
        ["d", [1.5, 1]],
        ["d", [["l", []], 1]],
        ["d", ["k", 1, "k", 2]],
        ["a", "|O", [1], False, 0],
        ["a", "<f4", [1], False, -4],
        ["a", "<f4", [1000], False, 0],
        ["a", "<f4", [2**47, 2**47], False, 0],
        ["a", "<f4", [-1], False, 0],
        ["a", "<f4", [1.0], False, 0],
        ["a", "<f4", [1] * 40, False, 0],
        ["a", "<f4", [0, 2**47, 2**47], False, 0],
        ["a", "<U999999999", [1], False, 0],
        ["a", "<U0", [1], False, 0],
        ["a", ["<f4", [2**40]], [1], False, 0],
        ["a", {"columns": [["a", "|O", 0]], "itemsize": 8, "aligned": False}, [1], False, 0],
        ["a", {"columns": [["a", "<f8", -8]], "itemsize": 8, "aligned": False}, [1], False, 0],
        ["a", {"columns": [["a", "<f8", 0], ["a", "<f8", 0]], "itemsize": 8, "aligned": False},
         [1], False, 0],
        ["a", {"columns": [["a", "<f8", 0]], "itemsize": 2**62, "aligned": False}, [1], False, 0],
        ["a", {"columns": []}, [1], False, 0],
        ["s", "<f4", b"123"],
        ["s", "|O", b"12345678"],
        ["S", 5],
        ["S", ["l", []]],
        ["i", "1" * 5000],
        ["i", ""],
        ["i", "--1"],
        ["i", "0x1"],
        ["z", ["a", "|O", [1], False, 0]],
        ["x", "os.system", "true"],
        ["T", "nn", [1], 0],
        *[["T", name, [1], 0] for name in ("qint8", "quint8", "qint32", "quint4x2", "quint2x4")],
        ["T", "float32", [2**47], 0],
        ["T", "float32", [0, 2**47, 2**47], 0],
    ],
    ids=lambda node: str(node)[:40],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore")
def test_refuses(node: Any) -> None:
    """Objects, sizes that are not there, and unknown nodes are a DecodeError: C48, C58."""
    with pytest.raises(DecodeError):
        decode(crafted(node, bytes(64)))


def test_buffers_can_not_be_named_twice() -> None:
    """One buffer that many nodes name does not multiply memory: C58."""
    size = 1 << 20
    node = ["l", [["a", "|u1", [size], False, 0]] * 1000]
    data = crafted(node, bytes(size))
    assert peak_of(data) < 4 * len(data)


def test_announced_lengths_take_no_memory() -> None:
    """Nested array headers that announce what is not there cost no memory: C58."""
    header = (b"\xdd" + (1 << 20).to_bytes(4, "big")) * 900 + bytes(1 << 20)
    data = MAGIC + struct.pack("<I", len(header)) + header
    assert peak_of(data) < 4 * len(data)


def test_a_header_length_beyond_the_blob() -> None:
    """A declared header length beyond the data is refused before anything is read: C58."""
    with pytest.raises(DecodeError, match="ends within its header"):
        decode(MAGIC + struct.pack("<I", 0xFFFFFFFF) + bytes(100))


def peak_of(data: bytes) -> int:
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError):
            decode(data)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


class Trap:
    ran = False

    def __reduce__(self) -> tuple[Any, ...]:
        return _spring, ()


def _spring() -> str:
    Trap.ran = True
    return "sprung"


def test_nothing_is_unpickled() -> None:
    """A pickle as blob, as bytes value or as object array's buffer runs nothing: C48."""
    trap = pickle.dumps(Trap())
    assert pickle.loads(trap) == "sprung"
    Trap.ran = False
    with pytest.raises(DecodeError):
        decode(trap)
    assert decode(crafted(trap)) == trap
    with pytest.raises(DecodeError):
        decode(crafted(["a", "|O", [1], False, 0], trap.ljust(64)))
    assert not Trap.ran
