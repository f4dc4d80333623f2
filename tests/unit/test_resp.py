"""Commands are packed as the protocol says, and large buffers are not copied."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from redis_state_sync.resp import AT_ONCE, pack, parts

arguments = st.one_of(
    st.text(max_size=20), st.integers(), st.binary(max_size=50), st.just(bytes(range(256)) * 160)
)  # fmt: skip


def expected(values: tuple[object, ...]) -> bytes:
    out = b"*%d\r\n" % len(values)
    for value in values:
        raw = value.encode() if isinstance(value, str) else value
        raw = str(raw).encode() if isinstance(raw, int) else bytes(raw)  # type: ignore[arg-type]
        out += b"$%d\r\n%s\r\n" % (len(raw), raw)
    return out


@given(st.lists(arguments, min_size=1, max_size=5).map(tuple))
def test_bytes_on_the_wire(values: tuple[object, ...]) -> None:
    """The chunks together are exactly an array of bulk strings."""
    assert b"".join(pack(*values)) == expected(values)


def test_large_buffers_go_out_uncopied() -> None:
    """A large array is handed to the socket as it is, in few chunks."""
    array = np.zeros(1 << 20, np.uint8)
    chunks = pack("SET", "k", array, "EX", 5)
    assert len(chunks) == 3
    assert chunks[1].obj is array
    assert b"".join(chunks) == expected(("SET", "k", array.tobytes(), "EX", 5))


def test_no_more_than_a_little_at_once() -> None:
    """Large buffers are handed out in small parts, uncopied; small ones as they are."""
    array = np.arange(1 << 18, dtype=np.uint8)
    chunks = pack("SET", "k", array)
    given_out = list(parts(chunks))
    assert b"".join(given_out) == b"".join(chunks)
    assert max(map(len, given_out)) == AT_ONCE
    assert given_out[0] is chunks[0]
    assert given_out[1].obj is array


def test_views_are_measured_in_bytes() -> None:
    """The length of a memoryview of larger items is its bytes, not its items."""
    assert b"".join(pack(memoryview(np.arange(3.0)))).startswith(b"*1\r\n$24\r\n")
