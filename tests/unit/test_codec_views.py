"""Decoding without copying: the same values, in the memory of the blob."""

from __future__ import annotations

import gc
import mmap
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_state_sync.codec import decode, encode
from redis_state_sync.errors import DecodeError, EncodeError
from redis_state_sync.testing import skip_or_fail
from tests.unit.test_codec_hostile import crafted
from tests.unit.trees import arrays, identical, trees

try:
    import torch
except ImportError:
    skip_or_fail("these tests need torch: pip install 'redis-state-sync[rllib]'")

Array = np.ndarray[Any, Any]


def arrays_in(tree: Any) -> Iterator[Array]:
    """Every array of a tree."""
    if isinstance(tree, np.ndarray):
        yield tree
    elif isinstance(tree, (list, tuple, dict)):
        for item in tree.values() if isinstance(tree, dict) else tree:
            yield from arrays_in(item)


def writable(tree: Any) -> Array:
    """A blob in memory that may be written to, aligned as a mapping is."""
    blob = encode(tree)
    room = np.zeros(blob.size + 64, np.uint8)
    start = -room.ctypes.data % 64
    data = room[start : start + blob.size]
    data[:] = blob
    return data


@given(trees)
def test_views_equal_copies(tree: Any) -> None:
    """Types, order, shapes, dtypes and every bit are those of a tree that was copied."""
    data = writable(tree)
    assert identical(tree, decode(data, copy=False))
    assert identical(tree, decode(data.tobytes(), copy=False))


@given(trees)
def test_arrays_lie_in_the_blob(tree: Any) -> None:
    """Each array with a value in it is a view into the blob, and copied it is none."""
    data = writable(tree)
    for copy in (False, True):
        for array in arrays_in(decode(data, copy=copy)):
            if array.size:
                assert np.shares_memory(array, data) is not copy


@given(arrays.filter(lambda a: a.size > 0))
def test_arrays_are_as_writable_as_the_blob(array: Array) -> None:
    """Arrays of a blob that is read-only refuse to be written to; others take it."""
    data = writable(array)
    assert decode(data, copy=False).flags.writeable
    assert not decode(memoryview(data).toreadonly(), copy=False).flags.writeable


def test_fortran_order_survives() -> None:
    """An array in Fortran order is a view in Fortran order."""
    array = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    data = writable(array)
    view = decode(data, copy=False)
    assert view.flags.f_contiguous
    assert np.shares_memory(view, data)
    assert identical(view, array)


def test_views_keep_the_blob_alive() -> None:
    """A mapping stays as long as one array of it does, and no longer."""
    blob = encode({"a": np.arange(3), "b": np.arange(9)})
    mapping = mmap.mmap(-1, blob.size)
    mapping[:] = blob.tobytes()
    gone = weakref.ref(mapping)
    array = decode(memoryview(mapping), copy=False)["b"]
    del mapping
    gc.collect()
    assert gone() is not None
    assert identical(array, np.arange(9))
    del array
    assert gone() is None


@pytest.mark.parametrize("offsets", [(0, 32), (32, 0), (0, 0)])
def test_views_never_share_a_place(offsets: tuple[int, int]) -> None:
    """Buffers that a forged header lays over one another are apart for who writes to them."""
    header = ["l", [["a", "|u1", [64], False, offset] for offset in offsets]]
    for written, other in ((0, 1), (1, 0)):
        pair = decode(bytearray(crafted(header, bytes(range(128)))), copy=False)
        pair[written][:] = 255
        assert pair[other].tolist() == list(range(offsets[other], offsets[other] + 64))


@pytest.mark.parametrize("shift", [1, 2, 4])
def test_what_is_not_aligned_is_copied(shift: int) -> None:
    """Arrays and tensors are aligned to their items, wherever the blob lies."""
    tree = {"a": np.arange(3.0), "b": np.arange(5, dtype=np.uint8)}
    blob = encode(tree)
    data = np.zeros(blob.size + 64, np.uint8)[shift:]
    data[: blob.size] = blob
    read = decode(data[: blob.size], copy=False)
    assert identical(tree, read)
    assert all(array.flags.aligned for array in arrays_in(read))
    assert np.shares_memory(read["b"], data)
    blob = encode(torch.arange(3.0))
    data[: blob.size] = blob
    tensor = decode(data[: blob.size], copy=False)
    assert tensor.tolist() == [0.0, 1.0, 2.0]
    assert tensor.data_ptr() % tensor.itemsize == 0


@given(trees, st.data())
def test_damage_is_found_as_with_copies(tree: Any, draw: Any) -> None:
    """A damaged blob is refused, or read, as it is with copies: C58."""
    data = writable(tree)
    position = draw.draw(st.integers(0, data.size - 1))
    data[position] ^= 1 << draw.draw(st.integers(0, 7))
    assert outcome(data, copy=False) == outcome(data, copy=True)


def outcome(data: Array, *, copy: bool) -> str:
    """What decoding gives: the values again in bytes, or why it refuses."""
    try:
        return str(encode(decode(data, copy=copy)).tobytes())
    except (DecodeError, EncodeError) as error:
        return str(error)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex64])
def test_tensors_lie_in_the_blob(dtype: Any) -> None:
    """Tensors are views, too; those of a blob that is read-only are copies, and nobody warns."""
    tensor = torch.randint(0, 2, (3, 2)).to(dtype)
    data = writable([tensor, torch.empty(0)])
    inside = range(data.ctypes.data, data.ctypes.data + data.size)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        view, _ = decode(data, copy=False)
        copied, _ = decode(memoryview(data).toreadonly(), copy=False)
    assert view.data_ptr() in inside
    assert copied.data_ptr() not in inside
    for read in (view, copied):
        assert torch.equal(read, tensor)
        read[0] = 0
    assert torch.equal(decode(data, copy=False)[0], view)
