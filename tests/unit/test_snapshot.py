"""A snapshot decodes what it is asked for, from bytes or from memory that is shared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from redis_state_sync.errors import DecodeError
from redis_state_sync.snapshot import Snapshot
from tests.leases import mappings, snapshot_of
from tests.unit.trees import identical

TREE = {"rl_module/p": {"w": np.arange(2000.0)}, "counters": {"steps": 3}}
W = "rl_module/p"


@pytest.fixture(params=["bytes", "mapped"])
def snapshot(request: pytest.FixtureRequest, tmp_path: Path) -> Snapshot:
    return snapshot_of(TREE, directory=tmp_path if request.param == "mapped" else None)


def test_components(snapshot: Snapshot) -> None:
    """A look-up and a view give what was published, wherever it lies."""
    assert identical(TREE, dict(snapshot))
    assert identical(TREE, {name: snapshot.view(name) for name in snapshot})
    for read in (snapshot.__getitem__, snapshot.view, snapshot.is_private):
        with pytest.raises(KeyError):
            read("nothing")


def test_arrays_are_the_callers_own(snapshot: Snapshot) -> None:
    """Writing to what was looked up reaches no later look-up and no view."""
    view = snapshot.view(W)
    snapshot[W]["w"][:] = -1
    assert identical(TREE[W], view)
    assert identical(TREE[W], snapshot[W])


def test_views_of_bytes_are_read_only() -> None:
    """Bytes are held for the next versions: a view of them can not be written to."""
    snapshot = snapshot_of(TREE)
    assert not snapshot.is_private(W)
    first, second = snapshot.view(W)["w"], snapshot.view(W)["w"]
    assert np.shares_memory(first, second)
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 1


def test_views_of_joined_pieces_are_read_only() -> None:
    """That holds for the bytearray that large components are put together in, too."""
    snapshot = snapshot_of(TREE)
    joined: Any = {name: bytearray(blob) for name, blob in snapshot._blobs.items()}  # type: ignore[arg-type]
    whole = Snapshot(snapshot.version, snapshot.manifest, joined, snapshot.changed)
    assert not whole.is_private(W)
    assert not whole.view(W)["w"].flags.writeable
    whole[W]["w"][0] = 1
    assert identical(TREE[W], whole[W])


def test_views_of_shared_memory_are_private(tmp_path: Path) -> None:
    """Each view of mapped memory is its own, may be written to, and is unmapped when it is gone."""
    snapshot = snapshot_of(TREE, directory=tmp_path)
    assert snapshot.is_private(W)
    views: list[Any] = [snapshot.view(W)["w"] for _ in range(2)]
    views[0][:] = -1
    assert identical(TREE[W]["w"], views[1])
    assert identical(TREE[W], snapshot[W])
    assert all(any(v.ctypes.data in m for m in mappings(tmp_path)) for v in views)
    views.clear()
    assert mappings(tmp_path) == []


def test_damage_is_found(tmp_path: Path) -> None:
    """Mapped bytes that are no blob are a DecodeError: C58."""
    snapshot = snapshot_of(TREE, directory=tmp_path)
    (tmp_path / "1-counters").write_bytes(b"RSS\1 and more")
    for read in (snapshot.__getitem__, snapshot.view):
        with pytest.raises(DecodeError):
            read("counters")
