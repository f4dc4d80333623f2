"""Changes that keep a format's outer shape, so that what lies behind its first check is reached."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Any

import msgpack

from redis_state_sync.codec import MAGIC

Mutate = Callable[[bytes, int], bytes]

ODD: list[Any] = [
    None, True, False, 0, 1, -1, 2**31 - 1, 2**31, 2**32, 2**47, 2**48, 2**63 - 1, -(2**63),
    2**64 - 1, 0.0, float("nan"), float("inf"), "", "l", "t", "d", "a", "s", "S", "z", "i", "x",
    "T", "|O", "<f4", ">f8", "<U9", "|V5", "|S0", "<M8[ns]", "<m8[0s]", "<M8[999999Y]", "float32",
    "bfloat16", "qint8", "quint4x2", "bits8", "uint4", "_dynamo", "1" * 4001, "9" * 30, "-1", "\0",
    "../x", "rl_module/p", "0" * 32, b"", b"x" * 64, [], {}, [[]], ["l", []], ["d", []],
    ["d", ["k"]], ["a", "<f4", [0], False, 0], ["z", ["a", "<f4", [2], True, 0]],
    ["T", "int8", [0], 0], ["i", "5"], ["S", "x"], ["x", "fuzzed", 1], ["s", "<i4", b"abcd"],
    ["<f4", [2, 2]],
    {"columns": [["a", "<f4", 0]], "itemsize": 4, "aligned": False}, ["0" * 32, 5],
    msgpack.ExtType(5, b"x"), msgpack.Timestamp(5),
]  # fmt: skip


def _places(node: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    keys: Any = range(len(node)) if isinstance(node, list) else list(node)
    for key in keys:
        if len(found) > 1000:
            break
        found.append((node, key))
        if isinstance(node[key], (list, dict)):
            _places(node[key], found)
    return found


def tree(node: Any, choose: random.Random) -> Any:
    """A tree of lists and dicts with one to three changes somewhere."""
    root = [node]
    for _ in range(choose.randint(1, 3)):
        places = _places(root, [])
        parent, key = choose.choice(places)
        other_parent, other_key = choose.choice(places)
        match choose.randrange(8):
            case 0 | 1:
                parent[key] = _copy(choose.choice(ODD))
            case 2:
                parent[key] = _copy(other_parent[other_key])
            case 3 if isinstance(parent, list) and parent is not root:
                parent.insert(key, _copy(choose.choice(ODD)))
            case 4 if parent is not root:
                del parent[key]
            case 5 if isinstance(parent, list) and parent is not root:
                parent[key : key + 1] = [parent[key]] * choose.choice([2, 3, 40])
            case 6 if type(parent[key]) is int:
                parent[key] += choose.choice([-64, -1, 1, 8, 64, 2**20])
            case _:
                levels, tags = choose.choice([(1, "ltdzSx"), (9, "lt"), (120, "l")])
                for _ in range(levels):
                    parent[key] = [choose.choice(tags), [parent[key]]]
    return root[0] if root else None


def _copy(node: Any) -> Any:
    if isinstance(node, list):
        return [_copy(item) for item in node]
    return {k: _copy(v) for k, v in node.items()} if isinstance(node, dict) else node


def _msgpack(data: bytes, choose: random.Random, raw: Mutate) -> bytes:
    if choose.random() < 0.7:
        try:
            node = msgpack.unpackb(data, strict_map_key=False)
            return bytes(msgpack.packb(tree(node, choose)))
        except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException):
            pass
    return raw(data, len(data) + 64)


def blob(data: bytes, choose: random.Random, raw: Mutate) -> bytes:
    """A blob whose header changed, and now and then its buffers."""
    if data[:4] != MAGIC or len(data) < 8:
        return raw(data, len(data) + 64)
    (length,) = struct.unpack_from("<I", data, 4)
    header, buffers = data[8 : 8 + length], data[-(-(8 + length) // 64) * 64 :]
    if choose.random() < 0.85:
        header = _msgpack(header, choose, raw)
    if choose.random() < 0.2 and buffers:
        buffers = raw(buffers, len(buffers) + 64)
    start = MAGIC + struct.pack("<I", len(header)) + header
    return start + bytes(-len(start) % 64) + buffers


def spliced(data: bytes, other: bytes, choose: random.Random, raw: Mutate) -> bytes:
    """The header of one blob before the buffers of another."""
    if data[:4] != MAGIC or other[:4] != MAGIC or min(len(data), len(other)) < 8:
        return raw(data + other, len(data) + len(other))
    lengths = [struct.unpack_from("<I", one, 4)[0] for one in (data, other)]
    ends = [-(-(8 + length) // 64) * 64 for length in lengths]
    return data[: ends[0]] + other[ends[1] :]


def manifest(data: bytes, choose: random.Random, raw: Mutate) -> bytes:
    """A manifest with something changed."""
    return _msgpack(data, choose, raw)


_RESP = [
    b"*1\r\n", b"*2\r\n", b"*-1\r\n", b"*131072\r\n", b"*2147483647\r\n", b"%1\r\n", b"~1\r\n",
    b">1\r\n", b"|1\r\n", b"$-1\r\n", b"$0\r\n\r\n", b"$3\r\n1-1\r\n", b"$999999999\r\n", b":1\r\n",
    b":-1\r\n", b"+OK\r\n", b"-ERR x\r\n", b"_\r\n", b",nan\r\n", b"#t\r\n", b"(9\r\n",
    b"!1\r\nx\r\n", b"=5\r\ntxt:x\r\n", b"$?\r\n", b"\r\n", b"\n",
]  # fmt: skip


def replies(data: bytes, choose: random.Random, raw: Mutate) -> bytes:
    """Replies with one exchanged, repeated or cut; the first bytes say how they are asked for."""
    if choose.random() < 0.4:
        return raw(data, len(data) + 64)
    flags, lines = data[:4], data[4:].split(b"\r\n")
    at = choose.randrange(len(lines))
    match choose.randrange(5):
        case 0:
            lines[at : at + 1] = [choose.choice(_RESP)[:-2]]
        case 1:
            lines.insert(at, choose.choice(_RESP)[:-2])
        case 2:
            lines[at : at + 1] = [lines[at]] * choose.choice([2, 5, 200])
        case 3:
            del lines[at]
        case _:
            flags = bytes(choose.randrange(256) for _ in range(4))
    return flags + b"\r\n".join(lines)
