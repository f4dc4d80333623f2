"""What an attacker who can write to the store plants: versions that look like the learner's own."""

from __future__ import annotations

import base64
import io
import os
import pickle
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

from redis_state_sync.codec import MAGIC, encode
from redis_state_sync.manifest import Component, Manifest, Piece, digest_of
from redis_state_sync.store import Store
from redis_state_sync.version import Version

TTL = {"ttl_s": 600.0, "timeout": 20.0}


class _Makes:
    """Unpickled, it makes a folder."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self._path,)


def trap(path: Path) -> bytes:
    """A pickle that makes a folder when it is loaded."""
    return pickle.dumps(_Makes(path), protocol=2)


def forged_text(path: Path) -> str:
    """A packed array as RLlib loads it, with the trap in place of an array."""
    return base64.b64encode(zlib.compress(trap(path))).decode()


def object_array(path: Path) -> str:
    """The same with a well-formed .npy file around it: an array of Python objects."""
    buffer = io.BytesIO()
    np.save(buffer, np.array([_Makes(path)], object), allow_pickle=True)
    return base64.b64encode(zlib.compress(buffer.getvalue())).decode()


def disguises(path: Path) -> dict[str, Any]:
    """Header nodes that RLlib's loader would unpickle, were they decoded."""
    text = forged_text(path)
    wide = text.encode("utf-32-le")
    return {
        "str": text,
        "bytes": text.encode(),
        "object array": object_array(path),
        "white space": " \n".join(text[i : i + 7] for i in range(0, len(text), 7)),
        "junk": "!~" + "\0*".join(text),
        "text behind the end": text + "==more",
        "numpy str": ["S", text],
        "numpy bytes": ["S", text.encode()],
        "scalar str": ["s", f"<U{len(text)}", wide],
        "scalar bytes": ["s", f"|S{len(text)}", text.encode()],
        "scalar void": ["s", f"|V{len(text)}", text.encode()],
        "array of bytes": ["a", "|u1", [len(text)], False, "here"],
        "0-d array": ["a", f"|S{len(text)}", [], False, "here"],
        "structure": [
            "a",
            {"columns": [["a", f"|S{len(text)}", 0]], "itemsize": len(text), "aligned": False},
            [1],
            False,
            "here",
        ],
        "packed text": ["z", ["a", "|O", [1], False, "here"]],
    }


def with_packed_replaced(blob: bytes, node: Any, text: str) -> bytes:
    """A blob whose packed arrays are replaced by some node; ``"here"`` in it: where `text` is."""
    (length,) = struct.unpack_from("<I", blob, len(MAGIC))
    header = msgpack.unpackb(blob[8 : 8 + length], strict_map_key=False)
    buffers = blob[-(-(8 + length) // 64) * 64 :]
    replaced = _replace(header, placed(node, len(buffers)))
    assert replaced != header, "there is no packed array in it"
    return crafted(replaced, buffers + text.encode())


def _replace(node: Any, by: Any) -> Any:
    if isinstance(node, list):
        return by if node[:1] == ["z"] else [_replace(item, by) for item in node]
    return node


def placed(node: Any, offset: int) -> Any:
    """A node whose buffer is at some offset."""
    if isinstance(node, list):
        return [placed(item, offset) for item in node]
    return offset if node == "here" else node


def crafted(header: Any, buffers: bytes = b"") -> bytes:
    """A blob with any header."""
    packed = msgpack.packb(header)
    start = MAGIC + struct.pack("<I", len(packed)) + packed
    return bytes(start + bytes(-len(start) % 64) + buffers)


def plant(
    store: Store, keys: Any, replace: Callable[[str], bytes | None], *, add: str | None = None
) -> Version:
    """Announces a version that is the newest one but for some components, with the real writer.

    Args:
        store: Where.
        keys: Of which namespace.
        replace: Component name -> its forged bytes, or None to leave it.
        add: A component that the learner's version may not have.
    """
    newest = store.newest(keys, timeout=20)[0]
    real = Manifest.decode(newest.manifest)
    components = dict(real.components)
    for name in [*components, *([add] if add else [])]:
        data = replace(name)
        if data is not None:
            store.put_blobs(keys, {digest_of(data): data}, **TTL)
            components[name] = Component((Piece(digest_of(data), len(data)),))
    assert components != real.components
    version = Version(newest.version.generation, newest.version.number + 1)
    forged = Manifest(real.writer, real.time_ms, components, real.weights_seq_no)
    store.append(keys, version, forged.encode(), **TTL)
    return version


def newest_manifest(store: Store, keys: Any) -> Manifest:
    """What the newest version consists of."""
    return Manifest.decode(store.newest(keys, timeout=20)[0].manifest)


def blob_of(store: Store, keys: Any, component: str) -> bytes:
    """A component's bytes in the newest version."""
    (piece,) = newest_manifest(store, keys).components[component].pieces
    (blob,) = store.get_blobs(keys, [piece.digest], timeout=20)
    assert blob is not None
    return blob


def harmless(tree: Any) -> bytes:
    """What `encode` makes of a tree."""
    return bytes(encode(tree))
