"""What fuzzing begins with: real encodings of everything that the formats know."""

from __future__ import annotations

import base64
import io
import struct
import zlib
from typing import Any

import msgpack
import numpy as np
import torch

from redis_state_sync.codec import MAGIC, encode
from redis_state_sync.endpoint import SCHEMES
from redis_state_sync.manifest import Component, Manifest, Piece, Writer, digest_of


def packed(array: Any) -> str:
    """As `MeanStdFilter` states hold arrays."""
    buffer = io.BytesIO()
    np.save(buffer, array)
    return base64.b64encode(zlib.compress(buffer.getvalue())).decode()


TREES: list[Any] = [
    None,
    {},
    {"a": 1, 2: -3.5, None: True, 2**70: "long key"},
    [[], (), [(1, [2])], "text", b"bytes", "ä€𝄞", 2**200, -(2**64), float("nan")],
    {"w": np.arange(6, dtype=">f8").reshape(2, 3), "f": np.asfortranarray(np.eye(3, 2))},
    [np.zeros((0, 3)), np.array(5), np.array(["x", "yz"]), np.array([b"a"]), np.zeros(2, "V3")],
    [np.int8(3), np.float16(1), np.str_("s\0"), np.bytes_(b"b\0"), np.datetime64(5, "ms")],
    np.zeros(2, [("a", "<f4"), ("b", [("c", "S3"), ("d", "<i8", (2, 2))])]),
    np.zeros(3, np.dtype([("a", "<u1"), ("b", "<f8")], align=True)),
    [np.array([1, 2], "m8[25s]"), np.array(["2020"], "M8[D]"), np.zeros(2, complex)],
    {"mean": packed(np.arange(4.0)), "std": packed(np.float32(2)), "n": packed(np.zeros((2, 0)))},
    [torch.arange(5), torch.ones(2, 2, dtype=torch.bfloat16), torch.zeros(0, 3), torch.tensor(1)],
    [torch.ones(3, dtype=torch.complex64), torch.ones(4, dtype=torch.float8_e5m2), torch.ones(1)],
    {
        "MeanStdFilter": {
            None: {
                "shape": (4,),
                "clip_by_value": 10.0,
                "running_stats": [{"num_pushes": 5, "mean_array": packed(np.zeros(4))}],
            }
        }
    },
]


def crafted(node: Any, buffers: bytes = b"") -> bytes:
    """A blob with any header."""
    header = msgpack.packb(node)
    start = MAGIC + struct.pack("<I", len(header)) + header
    return start + bytes(-len(start) % 64) + buffers


def blobs() -> list[bytes]:
    """One for each tree, and what no encoder would write: packed arrays as text."""
    text = packed(np.arange(3))
    cut, wrong = text[:60], base64.b64encode(zlib.compress(bytes(99))[:-4] + b"abcd").decode()
    forged = [text, text.encode(), ["t", [cut, wrong]], ["S", text], ["l", [cut.encode(), wrong]]]
    forged += [["a", "|u1", [len(text)], False, 0], ["a", "<U1", [2], False, 0]]
    return [bytes(encode(tree)) for tree in TREES] + [crafted(f, text.encode()) for f in forged]


def manifests() -> list[bytes]:
    """From a claim to a version of several components."""
    pieces = [Piece(digest_of(bytes([n])), n * 1000) for n in range(5)]
    parts: list[dict[str, Component]] = [
        {},
        {"rl_module/p0": Component((pieces[1],))},
        {
            "rl_module/p0": Component(tuple(pieces)),
            "rl_module/p1": Component((pieces[2], pieces[2])),
            "env_to_module_connector": Component(()),
            "counters": Component((pieces[3],)),
        },
    ]
    return [
        Manifest(Writer("session/job/trial", "host", 7), 1_700_000_000_000, part, seq_no).encode()
        for part, seq_no in zip(parts, (None, 0, 2**40), strict=True)
    ]


def bulk(data: bytes) -> bytes:
    """A bulk string of RESP."""
    return b"$%d\r\n%b\r\n" % (len(data), data)


def replies() -> list[bytes]:
    """What servers answer to each of our commands, and what they answer when they can not."""
    manifest = manifests()[1]
    entry = b"*2\r\n" + bulk(b"1700000000000-1") + b"*2\r\n" + bulk(b"manifest") + bulk(manifest)
    return [
        b"*0\r\n",
        b"*1\r\n" + entry,
        b"*2\r\n" + entry + entry,
        b"*2\r\n" + bulk(b"1700000000") + bulk(b"123456"),
        bulk(b"# Server\r\nredis_version:7.0.0\r\nvalkey_version:9.0.0\r\n"),
        bulk(bytes(300)) + bulk(b"x"),
        b"$-1\r\n:1\r\n:0\r\n+OK\r\n",
        bulk(b"1-1") + b":1\r\n" * 3,
        b"*4\r\n" + bulk(b"a") + bulk(b"1-1") + bulk(b"b") + bulk(b"2-2"),
        b"%1\r\n" + bulk(b"a") + bulk(b"1-1"),
        b"-ERR The ID specified in XADD is equal or smaller than the target\r\n",
        b"-MOVED 5798 127.0.0.1:7001\r\n" * 4,
        b"-ASK 5798 two.example:2\r\n+OK\r\n",
        b"-MOVED 5798 :0\r\n-TRYAGAIN later\r\n-CLUSTERDOWN no\r\n-MOVED x\r\n",
        b"*4\r\n" + bulk(b"r1") + bulk(b"1-1 5") + bulk(b"resend") + bulk(b"0" * 32),
        b"-NOPERM no\r\n-NOAUTH no\r\n-LOADING wait\r\n-READONLY no\r\n-OOM no\r\n",
        b"*3\r\n*-1\r\n_\r\n#t\r\n,1.5\r\n(123456789012345678901\r\n=7\r\ntxt:abc\r\n",
        b">2\r\n+invalidate\r\n*0\r\n~2\r\n:1\r\n:2\r\n|1\r\n+k\r\n+v\r\n:5\r\n",
        b"%2\r\n+server\r\n+redis\r\n+proto\r\n:3\r\n",
        b"*1000000\r\n*1000000\r\n$1000000000\r\n",
    ]


def urls() -> list[bytes]:
    """Some for each scheme."""
    tails = ["h:1/2", "me:pw@[::1]:7/0?protocol=3", "h?db=1&password=x", "/run/v.sock", "a,b/svc/1"]
    return [f"{scheme}://{tail}".encode() for scheme in SCHEMES for tail in tails]


def versions() -> list[bytes]:
    """Good and nearly good ones."""
    return [b"1-1", b"18446744073709551615-18446744073709551615", b"0-0", b"1--1", "١-١".encode()]
