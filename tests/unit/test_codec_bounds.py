"""What a hostile blob can cost its reader: memory and time in proportion to its length."""

from __future__ import annotations

import base64
import subprocess
import sys
import zlib
from collections.abc import Callable
from typing import Any

import msgpack
import numpy as np
import pytest
import torch  # noqa: F401 - or the first test that decodes a tensor measures this

from redis_state_sync import packed_npy
from redis_state_sync.codec import decode, encode
from redis_state_sync.errors import DecodeError, EncodeError
from redis_state_sync.untrusted import MAX_ITEMS
from tests.unit.bounds import assert_linear, cpu_seconds, most_memory, peak_memory, tried
from tests.unit.test_codec_hostile import crafted

SIZE = 1 << 16
MERSENNE = (1 << 61) - 1  # Python's hash of an int is its remainder by this.


def many(item: Any) -> Callable[[int], bytes]:
    """A list of as many items as make a header of some length."""

    def make(size: int) -> bytes:
        return crafted(["l", [item] * (size // len(msgpack.packb(item)))])

    return make


def colliding_keys(size: int) -> bytes:
    keys = [["i", str((i + 1) * MERSENNE << 10)] for i in range(size // 40)]
    return crafted(["d", [part for key in keys for part in (key, None)]])


def close_int_keys(size: int) -> bytes:
    """Ints of 64 bits whose lowest bits are equal: the first few places in a dict are too."""
    keys = [(i << 44) + 1 for i in range(min(size // 10, 1 << 17))]
    return crafted(["d", [part for key in keys for part in (key, None)]])


def stored(size: int) -> bytes:
    """A stream that inflates to itself, and does not end well."""
    stream = zlib.compress(np.random.default_rng(0).bytes(size // 2), 0)[:-4] + b"oops"
    return crafted(base64.b64encode(stream).decode())


def inflating(size: int) -> bytes:
    """Texts of which each inflates to a thousand times its length, and does not end well."""
    text = base64.b64encode(zlib.compress(bytes(1 << 20))[:-4] + b"oops").decode()
    return crafted(["l", [text] * (size // len(text))])


def fields(size: int) -> bytes:
    columns = [[f"f{i}", "|i1", i] for i in range(500)]
    dtype = {"columns": columns, "itemsize": 500, "aligned": False}
    return many(["a", dtype, [0], False, 0])(size)


def subarrays(size: int) -> bytes:
    dtype: Any = "|i1"
    for _ in range(7):
        dtype = [dtype, [1] * 4]
    return many(["a", dtype, [0], False, 0])(size)


def nested(size: int) -> bytes:
    node: Any = None
    for _ in range(90):
        node = ["l", [node]]
    return many(node)(size)


ARRAY = ["a", "<f4", [0], False, 0]
BOMBS: dict[str, Callable[[int], bytes]] = {
    "empty lists": many([]),
    "lists": many(["l", []]),
    "tuples": many(["t", [-100]]),
    "dicts": many(["d", ["ab", -100]]),
    "arrays without items": many(ARRAY),
    "packed arrays": many(["z", ARRAY]),
    "tensors": many(["T", "int8", [0], 0]),
    "tensors of nested shape": many(["T", "int8", [0] * 20, 0]),
    "scalars": many(["s", "<f4", b"abcd"]),
    "texts": many("ab"),
    "wide text": lambda size: crafted("a" * size + "\U0001f600"),
    "bytes": lambda size: crafted(b"x" * size),
    "array": lambda size: crafted(["a", "|u1", [size], False, 0], b"A" * size),
    "an array named again": lambda size: crafted(
        ["l", [["a", "|u1", [size], False, 0]] * 1000], bytes(size)
    ),
    "tensor": lambda size: crafted(["T", "int8", [size], 0], bytes(size)),
    "long ints": many(["i", "9" * 3999]),
    "colliding keys": colliding_keys,
    "close int keys": close_int_keys,
    "stored stream": stored,
    "inflating texts": inflating,
    "fields": fields,
    "subarrays": subarrays,
    "nested": nested,
}


@pytest.mark.parametrize("make", BOMBS.values(), ids=BOMBS)
def test_memory(make: Callable[[int], bytes]) -> None:
    """Decoding takes 5 times the blob and 128 bytes an item at most, whatever it holds: C58."""
    data = make(SIZE)
    assert peak_memory(tried(decode, data)) <= most_memory(len(data), MAX_ITEMS)


@pytest.mark.parametrize("make", BOMBS.values(), ids=BOMBS)
def test_time(make: Callable[[int], bytes]) -> None:
    """Decoding takes time in proportion to the blob's length, whatever it holds: C58."""
    assert_linear(lambda size: tried(decode, make(size)), SIZE // 4)


@pytest.mark.parametrize(
    "make",
    [colliding_keys, stored, inflating, BOMBS["empty lists"]],
    ids=lambda make: make.__name__,
)
def test_a_megabyte_is_refused_soon(make: Callable[[int], bytes]) -> None:
    """What once took many seconds for a megabyte takes a part of one: C58."""
    data = make(1 << 20)
    assert cpu_seconds(tried(decode, data)) < 3  # 0.15 s on an idle machine


def test_inflating_has_one_budget() -> None:
    """All texts of a blob may inflate to 64 MiB together; then it is refused: C58."""
    text = base64.b64encode(zlib.compress(bytes(20 << 20))[:-4] + b"oops").decode()
    assert not packed_npy.looks_packed(text)
    assert decode(crafted(["l", [text] * 3])) == [text] * 3
    with pytest.raises(DecodeError, match="RLlib would load"):
        decode(crafted(["l", [text] * 4]))


def test_too_many_values() -> None:
    """A tree of more than a million values is refused at both ends; a list of as many is not."""
    fits = [None] * (MAX_ITEMS - 3)
    assert decode(encode(fits)) == fits
    with pytest.raises(
        EncodeError, match=r"^c: more than 1048576 values outside of arrays: use arr"
    ):
        encode([*fits, None], path="c")
    with pytest.raises(DecodeError, match="more than 1048576 items"):
        decode(crafted(["l", [*fits, None]]))


def test_long_keys() -> None:
    """A thousand keys beyond 64 bits survive; more are refused at both ends: C58."""
    keys = {2**70 + i: i for i in range(1000)}
    assert decode(encode([keys, {i: i for i in range(5000)}])) == [
        keys,
        {i: i for i in range(5000)},
    ]
    with pytest.raises(EncodeError, match="more than 1000 keys beyond 64 bits"):
        encode([keys, {2**70: None}])
    flat = [part for key in [*keys, 5] for part in (["i", str(key)], None)]
    with pytest.raises(DecodeError, match="more than 1000 keys beyond 64 bits"):
        decode(crafted(["d", flat]))


def test_a_name_imports_nothing() -> None:
    """A dtype's name in a blob can not make torch import modules, let alone run them: C48, C58."""
    names = ["_dynamo", "_inductor", "onnx", "_export", "nn", "dtype", "__name__", "load", ""]
    code = (
        "import sys, torch\n"
        "from redis_state_sync.codec import decode\n"
        "from redis_state_sync.errors import DecodeError\n"
        "before = {*sys.modules}\n"
        f"for data in {[crafted(['T', name, [1], 0], bytes(64)) for name in names]!r}:\n"
        "    try: decode(data)\n"
        "    except DecodeError: print('refused', {*sys.modules} - before)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=50
    )
    assert done.stdout == "refused set()\n" * len(names)
