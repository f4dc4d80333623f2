"""Snapshots whose components lie in files that processes map, as a cache of a node has them."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

from redis_state_sync.blobs import Blob
from redis_state_sync.codec import encode
from redis_state_sync.components import is_weights
from redis_state_sync.manifest import Manifest, Writer
from redis_state_sync.snapshot import Mapped, Snapshot
from redis_state_sync.version import Version


class Lease:
    """A file of encoded bytes.

    Args:
        path: The file; it must be there whenever `map` is called, and not change.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def map(self) -> memoryview:
        """A private mapping that may be written to."""
        with self.path.open("rb") as file:
            access = mmap.PROT_READ | mmap.PROT_WRITE
            return memoryview(mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=access))


def snapshot_of(
    components: dict[str, Any],
    number: int = 1,
    *,
    directory: Path | None = None,
    changed: set[str] | None = None,
) -> Snapshot:
    """A version of these components, its `weights_seq_no` 10 times its number.

    Args:
        components: Component name -> tree.
        number: The version's.
        directory: Where to put files of its components to map; None: they are bytes.
        changed: Names of the components that changed; None: all.
    """
    blobs: dict[str, bytes | bytearray | Mapped] = {}
    described = {}
    for name, tree in components.items():
        data = encode(tree, guard_packed=not is_weights(name))
        described[name] = Blob(data).component
        blobs[name] = data.tobytes()
        if directory is not None:
            path = directory / f"{number}-{name.replace('/', '-')}"
            path.write_bytes(data.tobytes())
            blobs[name] = Lease(path)
    return Snapshot(
        Version(1, number),
        Manifest(Writer("w", "host", 1), 0, described, weights_seq_no=10 * number),
        blobs,
        frozenset(components if changed is None else changed),
    )


def mappings(directory: Path) -> list[range]:
    """The addresses at which this process has files of a directory mapped."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    ends = [line.split()[0].split("-") for line in lines if f" {directory}/" in line]
    return [range(int(start, 16), int(end, 16)) for start, end in ends]


def unshared_kb(directory: Path) -> int:
    """How much of these mappings is this process's own by now, and no longer the files'."""
    total, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if not line.split()[0].endswith(":"):
            inside = f" {directory}/" in line
        elif inside and line.startswith("Anonymous:"):
            total += int(line.split()[1])
    return total
