"""Memory is used again when nothing refers to it, never before; and not much of it is kept."""

from __future__ import annotations

import gc
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_state_sync.buffer_pool import BufferPool
from redis_state_sync.node_cache import NodeCache
from redis_state_sync.slot_pool import SlotPool
from redis_state_sync.spare_memory import Piece, worth_keeping
from redis_state_sync.wire import ALIGNMENT
from tests.unit.node_files import KIB, opened
from tests.unit.views import VIEWS, Make

SIZE = 64 * KIB
Take = Callable[[int], Any]


@pytest.fixture
def cache(shared_memory: Path) -> NodeCache:
    return opened(shared_memory)


def _of_slots(cache: NodeCache) -> Take:
    pool, numbers = SlotPool(cache), itertools.count()

    def take(size: int) -> Any:
        taken = pool.take(size)
        assert taken is not None
        array, slot = taken
        slot.commit(f"{next(numbers):x}")
        return array

    return take


@pytest.fixture(params=["buffers", "slots"])
def take(request: pytest.FixtureRequest, cache: NodeCache) -> Take:
    """Either pool's."""
    return BufferPool().take if request.param == "buffers" else _of_slots(cache)


@contextmanager
def no_collector() -> Iterator[None]:
    """What comes back must do so by itself."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def place(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_memory_that_is_referred_to(take: Take, view: Make) -> None:
    """Whatever refers to memory keeps it from being handed out; when that is gone, it is again."""
    with no_collector():
        array = take(SIZE)
        mine, kept = place(array), view(array)
        del array
        others = [take(SIZE) for _ in range(4)]
        assert mine not in map(place, others)
        del others
        assert mine not in [place(take(SIZE)) for _ in range(4)]
        del kept
        if view is VIEWS["a cycle"]:
            gc.collect()
        assert mine in map(place, [take(SIZE) for _ in range(5)])


def test_what_is_handed_out(take: Take) -> None:
    """It has the size that was asked for, begins at a multiple of 64, and may be written to."""
    for size in (1, 63, 64, 65, SIZE):
        array = take(size)
        assert (array.shape, array.dtype) == ((size,), np.uint8)
        assert place(array) % ALIGNMENT == 0
        array[:] = 1


def test_one_state_after_the_other(take: Take) -> None:
    """A state that replaces another one needs memory for the two of them, however many come."""
    held, places = [], set()
    for _ in range(200):
        new = [take(SIZE), take(2 * SIZE)]
        places |= {place(array) for array in new}
        held = new
        del new
    assert len(held) == 2
    assert len(places) == 4


def test_a_state_of_many_components(take: Take) -> None:
    """Also a state of a hundred components is written to memory that is there."""
    held, places = [], set()
    for _ in range(5):
        new = [take(4 * KIB) for _ in range(100)]
        places |= {place(array) for array in new}
        held = new
        del new
    assert len(held) == 100
    assert len(places) == 200


def test_two_takes_never_share(take: Take) -> None:
    """Of all that is held at a time, no two share a byte, though sizes differ."""
    held = [take(SIZE + number % 3) for number in range(30)]
    del held[::2]
    held += [take(SIZE + number % 3) for number in range(30)]
    spans = sorted((place(array), place(array) + array.size) for array in held)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))


def test_threads(take: Take, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that take, write and let go at once never see each other's bytes."""
    wrong: list[object] = []
    quick: Callable[[Piece], bool] = Piece.unused.fget  # type: ignore[attr-defined]

    def slow(piece: Piece) -> bool:
        found = quick(piece)
        time.sleep(1e-5)  # Others have their turn between looking and taking.
        return found

    def work(number: int) -> None:
        try:
            held: list[Any] = []
            for turn in range(40):
                array = take(SIZE + turn % 2)
                array[:] = number
                held.append(array[::3])
                del array
                wrong.extend(number for view in held if not (view == number).all())
                del held[: turn % 3]
        except BaseException as error:
            wrong.append(error)
            raise

    monkeypatch.setattr(Piece, "unused", property(slow))
    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_references_are_counted_as_python_counts() -> None:
    """A view makes one reference more, and its end one less, on this version of Python."""
    piece = Piece(np.empty(8, np.uint8))
    alone = piece.references
    assert piece.unused
    views = [piece.array[:4], piece.array[2:].view(np.int8)[1:]]
    assert piece.references == alone + len(views)
    assert not piece.unused
    views.clear()
    assert piece.unused


@given(st.lists(st.tuples(st.integers(1, 50), st.booleans())))
def test_what_is_worth_keeping(drawn: list[tuple[int, bool]]) -> None:
    """All that is in use is kept, in its order, and of the rest at most twice as many bytes."""
    pieces = [Piece(np.empty(size, np.uint8)) for size, _ in drawn]
    views = [piece.array[:] for piece, (_, used) in zip(pieces, drawn, strict=True) if used]
    kept = worth_keeping(pieces)
    used = [piece for piece in pieces if not piece.unused]
    assert [piece for piece in kept if piece in used] == used
    assert kept == [piece for piece in pieces if piece in kept]
    spare = sum(p.array.size for p in kept) - sum(p.array.size for p in used)
    assert spare <= 2 * sum(view.size for view in views)


def test_the_last_is_kept_first() -> None:
    """What was used longest ago is let go first."""
    pieces = [Piece(np.empty(size, np.uint8)) for size in (10, 20, 10, 10)]
    view = pieces[0].array[:]
    assert worth_keeping(pieces) == [pieces[0], pieces[2], pieces[3]]
    assert view.size == 10
