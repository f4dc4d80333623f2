"""What a decoder may cost: as documented in codec.py, and in proportion to what it is given."""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

from redis_state_sync.errors import CodecError

FIXED_BYTES, PER_BYTE, PER_ITEM = 2 << 20, 5, 128


def most_memory(size: int, most_items: int) -> int:
    """The bytes that decoding `size` bytes may take."""
    return FIXED_BYTES + PER_BYTE * size + PER_ITEM * min(size, most_items)


def peak_memory(call: Callable[[], Any]) -> int:
    """The most bytes that Python and numpy held during a call."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def tried(decode: Callable[[bytes], Any], data: bytes) -> Callable[[], None]:
    """A call that decodes and lets pass the errors that decoders may raise."""

    def call() -> None:
        try:
            decode(data)
        except CodecError:
            pass

    return call


def cpu_seconds(call: Callable[[], Any]) -> float:
    """Of this thread: what else the machine does does not count, nor what Python tidies up."""
    best = float("inf")
    gc.disable()
    try:
        for _ in range(3):
            started = time.thread_time()
            call()
            best = min(best, time.thread_time() - started)
    finally:
        gc.enable()
    return best


def assert_linear(make: Callable[[int], Callable[[], Any]], size: int) -> None:
    """Eight times the size takes about eight times as long; quadratic would be 64 times."""
    small, large = make(size), make(8 * size)
    assert cpu_seconds(large) < 24 * max(cpu_seconds(small), 0.001)
