"""Buffers of a process's own: which one is taken, and how much is kept."""

from __future__ import annotations

import numpy as np
import pytest

from redis_state_sync.buffer_pool import BufferPool
from redis_state_sync.wire import ALIGNMENT, Buffer

MB = 1 << 20


def kept(pool: BufferPool) -> int:
    """Bytes that a pool has, in use or not."""
    return sum(piece.array.size for piece in pool._pieces)


def place(array: Buffer) -> int:
    return int(array.ctypes.data)


def test_one_that_is_a_little_too_large() -> None:
    """A buffer serves for less, down to half of it, and never for more: sizes change a little."""
    pool = BufferPool()
    # Something in use, so that the other one is worth keeping.
    held = pool.take(MB)
    first = place(pool.take(1000))
    for size, again in ((999, True), (1001, False), (1000, True), (501, True), (200, False)):
        taken = pool.take(size)
        assert (abs(place(taken) - first) < 2 * ALIGNMENT) == again, size
        assert taken.size == size
        del taken
    assert held.size == MB


def test_the_smallest_that_fits() -> None:
    """Of several that are free it is the smallest: a larger one may be wanted next."""
    pool = BufferPool()
    held = pool.take(MB)
    large, small = pool.take(1900), pool.take(1100)
    places = place(large), place(small)
    del large, small
    taken = pool.take(1000), pool.take(1800)
    assert [abs(place(taken[n]) - places[1 - n]) < 2 * ALIGNMENT for n in (0, 1)] == [True, True]
    assert held.size == MB


@pytest.mark.parametrize("factor", [1.3, 0.7])
def test_states_that_grow_or_shrink(factor: float) -> None:
    """However sizes change, what is kept is at most three times what is in use.

    What is in use may itself be twice as large as what was asked for.
    """
    pool, size = BufferPool(), float(64 << 10)
    held: list[Buffer] = []
    for _ in range(12):
        held = [*held[-1:], pool.take(int(size))]
        assert kept(pool) <= 3 * 2 * sum(array.size + ALIGNMENT for array in held)
        size *= factor


def test_one_large_state() -> None:
    """A large state that is gone does not stay in memory while small ones come."""
    pool = BufferPool()
    large = pool.take(64 * MB)
    del large
    small = pool.take(1000)
    assert kept(pool) <= 3 * (small.size + ALIGNMENT)


def test_what_was_kept_for_long() -> None:
    """A large state that is let go late is given back, though nothing fresh is needed any more."""
    pool = BufferPool()
    large, held = pool.take(64 * MB), [pool.take(1000)]
    for _ in range(10):
        held = [*held[-1:], pool.take(1000)]
    del large
    for _ in range(10):
        held = [*held[-1:], pool.take(1000)]
    assert kept(pool) < MB
    assert len(pool._pieces) == 3


def test_content_is_what_was_written() -> None:
    """A buffer that is used again holds what its new user writes, and only this."""
    pool = BufferPool()
    for number in range(20):
        array = pool.take(5000)
        array[:] = number
        view = array[::7]
        del array
        other = pool.take(5000)
        other[:] = 255
        assert np.all(view == number)
        del view, other
