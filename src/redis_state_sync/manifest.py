"""The manifest: the small record of one version, stored as the one field of its stream entry."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgpack
import xxhash

from redis_state_sync.components import is_name
from redis_state_sync.errors import DecodeError, EncodeError, SettingsError
from redis_state_sync.untrusted import unpack

FORMAT = 1
MAX_MANIFEST_BYTES = 4 << 20
MAX_MANIFEST_ITEMS = 1 << 18
MAX_PIECES = 1 << 16
MAX_PIECE_BYTES = 512 << 20  # Redis' own limit on a string.
MAX_WRITER_LENGTH = 1024
_COUNTS = range(1 << 63)
_DIGEST = re.compile(r"[0-9a-f]{32}\Z")
_DIGEST_LENGTH = 32
# How blobs are named: fast, against accidents; or by a cryptographic digest, against forgers.
XXH3 = "xxh3-128"
BLAKE2B = "blake2b-128"


def check_writer_id(value: Any) -> None:
    """Raises `SettingsError` unless `value` is None or a str that a manifest can hold."""
    if value is not None and not isinstance(value, str):
        raise SettingsError(f"writer_id must be a str or None, got {value!r}")
    if value is not None and len(value) > MAX_WRITER_LENGTH:
        raise SettingsError(f"writer_id is longer than {MAX_WRITER_LENGTH} characters")


def check_seq_no(value: Any) -> None:
    """Raises `SettingsError` unless `value` is None or an int in [0, 2**63)."""
    if value is not None and (type(value) is not int or value not in _COUNTS):
        raise SettingsError(f"weights_seq_no must be an int in [0, 2**63) or None, got {value!r}")


@dataclass(frozen=True, slots=True)
class Writer:
    """Who published.

    Args:
        id: What an EnvRunner of the same learner can work out for itself, also after a restart.
        host: Host name, for people.
        pid: Process id, for people.
    """

    id: str
    host: str
    pid: int

    def __str__(self) -> str:
        return f"{self.id!r} (host {self.host!r}, pid {self.pid})"


@dataclass(frozen=True, slots=True)
class Piece:
    """One blob: its digest (32 hexadecimal digits) and its size in bytes."""

    digest: str
    size: int


@dataclass(frozen=True, slots=True)
class Component:
    """One separately stored part of a state: the blobs that make it up, in order."""

    pieces: tuple[Piece, ...]

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(piece.size for piece in self.pieces)

    def name_on_node(self, namespace: str, algorithm: str) -> str:
        """What the node's cache calls these bytes: 32 hexadecimal digits.

        Of the namespace as well, and of the algorithm: where one is forged, others must not be.
        """
        key = "\0".join([namespace, algorithm, *(piece.digest for piece in self.pieces)])
        return hashlib.blake2b(key.encode(), digest_size=_DIGEST_LENGTH // 2).hexdigest()


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a version consists of.

    Args:
        writer: Who published it.
        time_ms: When, by the writer's clock, in ms since 1970.
        components: Name -> component. Empty for a claim.
        weights_seq_no: RLlib's counter of gradient updates; not the version: it restarts at 0
            with each driver. None if the state has none.
        algorithm: Of which algorithm the digests are: `XXH3` or `BLAKE2B`.
    """

    writer: Writer
    time_ms: int
    components: Mapping[str, Component] = field(default_factory=dict)
    weights_seq_no: int | None = None
    algorithm: str = XXH3

    @property
    def size(self) -> int:
        """Bytes of all components: what a reader's memory takes, however often a blob recurs."""
        return sum(component.size for component in self.components.values())

    def digests(self) -> dict[str, int]:
        """Returns digest -> size of every blob, each once, in the order of use."""
        return {p.digest: p.size for c in self.components.values() for p in c.pieces}

    def encode(self) -> bytes:
        """Returns the msgpack bytes.

        Raises:
            EncodeError: If they are more than 4 MiB.
        """
        data: bytes = msgpack.packb(
            {
                "format": FORMAT,
                "digest": self.algorithm,
                "writer": [self.writer.id, self.writer.host, self.writer.pid],
                "time_ms": self.time_ms,
                "weights_seq_no": self.weights_seq_no,
                "components": {
                    name: [[p.digest, p.size] for p in component.pieces]
                    for name, component in self.components.items()
                },
            }
        )
        if len(data) > MAX_MANIFEST_BYTES:
            raise EncodeError(f"manifest of {len(data)} bytes; the limit is {MAX_MANIFEST_BYTES}")
        return data

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        """Reads the bytes of a manifest of unknown origin.

        Raises:
            DecodeError: If they are not one.
        """
        if len(data) > MAX_MANIFEST_BYTES:
            raise DecodeError("manifest is too large")
        match unpack(data, "manifest", max_items=MAX_MANIFEST_ITEMS):
            case {
                "format": 1,
                "digest": ("xxh3-128" | "blake2b-128") as algorithm,
                "writer": [str(id_), str(host), int(pid)],
                "time_ms": int(time_ms),
                "weights_seq_no": (None | int()) as weights_seq_no,
                "components": dict(components),
            } if _plausible([id_, host], [pid, time_ms, weights_seq_no]):
                return cls(
                    writer=Writer(id_, host, pid),
                    time_ms=time_ms,
                    components=_components(components),
                    weights_seq_no=weights_seq_no,
                    algorithm=algorithm,
                )
            case {"format": int(other)} if other != FORMAT:
                raise DecodeError(f"manifest of format {other}; this package reads format {FORMAT}")
            case _:
                raise DecodeError("manifest lacks a field, or one is of the wrong type")


def _plausible(texts: list[str], counts: list[int | None]) -> bool:
    return all(len(text) <= MAX_WRITER_LENGTH for text in texts) and all(
        count is None or (type(count) is int and count in _COUNTS) for count in counts
    )


def _components(components: dict[Any, Any]) -> dict[str, Component]:
    for name, pieces in components.items():
        if not is_name(name):
            raise DecodeError(f"manifest holds a component with the ill-formed name {name[:80]!r}")
        if not isinstance(pieces, list):
            raise DecodeError("manifest holds an ill-formed component")
    if sum(map(len, components.values())) > MAX_PIECES:
        raise DecodeError(f"manifest names more than {MAX_PIECES} blobs")
    return {name: _component(name, pieces) for name, pieces in components.items()}


def _component(name: str, pieces: list[Any]) -> Component:
    checked = []
    for piece in pieces:
        match piece:
            case [str(digest), int(size)] if (
                _DIGEST.match(digest) and type(size) is int and 0 <= size <= MAX_PIECE_BYTES
            ):
                checked.append(Piece(digest, size))
            case _:
                raise DecodeError(f"component {name[:80]!r} holds an ill-formed piece")
    return Component(tuple(checked))


def digest_of(data: Any, algorithm: str = XXH3) -> str:
    """The name of a blob: 32 hexadecimal digits of its bytes' XXH3-128 or BLAKE2b-128."""
    if algorithm == BLAKE2B:
        return hashlib.blake2b(data, digest_size=_DIGEST_LENGTH // 2).hexdigest()
    return xxhash.xxh3_128_hexdigest(data)
