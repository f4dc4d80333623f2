"""Replies as servers write them, and a stream that brings bytes in given pieces."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st


class Pieces:
    """A stream that has some bytes to offer, then ends.

    Args:
        data: The bytes.
        cuts: At which offsets one piece ends and the next begins.
    """

    def __init__(self, data: bytes, cuts: Iterable[int] = ()) -> None:
        edges = sorted({0, len(data), *(cut for cut in cuts if 0 < cut < len(data))})
        self._pieces = [data[a:b] for a, b in pairwise(edges)]

    def begin(self, deadline: float, stall: float | None) -> None:
        """There is time enough."""

    def send(self, chunks: Any) -> None:
        """Nobody listens."""

    def receive(self, view: memoryview) -> int:
        """One piece, or as much of it as there is room for."""
        assert len(view) > 0
        count = self.receive_now(view)
        if not count:
            raise ConnectionError("the end")
        return count

    def fill(self, view: memoryview) -> None:
        """As many pieces as it takes."""
        while len(view):
            view = view[self.receive(view) :]

    def receive_now(self, view: memoryview) -> int:
        """As `receive`, but for the end."""
        if not self._pieces:
            return 0
        piece = self._pieces.pop(0)
        if len(piece) > len(view):
            self._pieces.insert(0, piece[len(view) :])
        count = min(len(piece), len(view))
        view[:count] = piece[:count]
        return count


@dataclass(frozen=True)
class ErrorReply(Exception):
    """What an error reply is read as."""

    text: str


@dataclass(frozen=True)
class Reply:
    """What a server sends, and what is to be made of it."""

    wire: bytes
    value: Any


def bulk(data: bytes) -> bytes:
    """A value of any bytes."""
    return b"$%d\r\n%b\r\n" % (len(data), data)


_words = st.text("abc XYZ-09", max_size=9).map(str.encode)
_keys = _words.map(lambda word: Reply(bulk(word), word))
_integers = st.integers(-(2**63), 2**63 - 1)
_plain = st.one_of(
    st.binary(max_size=40).map(lambda b: Reply(bulk(b), b)),
    st.binary(min_size=900, max_size=999).map(lambda b: Reply(bulk(b * 80), b * 80)),
    _integers.map(lambda n: Reply(b":%d\r\n" % n, n)),
    _words.map(lambda w: Reply(b"+%b\r\n" % w, w)),
    _words.map(lambda w: Reply(b"-E%b\r\n" % w, ErrorReply("E" + w.decode()))),
    st.just(Reply(b"$-1\r\n", None)),
    st.just(Reply(b"*-1\r\n", None)),
)
_resp3_only = st.one_of(
    st.just(Reply(b"_\r\n", None)),
    st.booleans().map(lambda b: Reply(b"#%c\r\n" % b"ft"[b], b)),
    st.floats(allow_nan=False).map(lambda f: Reply(b",%b\r\n" % repr(f).encode(), f)),
    _words.map(lambda w: Reply(b"=%d\r\ntxt:%b\r\n" % (len(w) + 4, w), w)),
)
# Where hiredis, in this or that version, knows less or shows it differently.
_ours = st.one_of(
    _integers.map(lambda n: Reply(b"(%d\r\n" % n**3, n**3)),
    _words.map(lambda w: Reply(b"!%d\r\nE%b\r\n" % (len(w) + 1, w), ErrorReply("E" + w.decode()))),
)


def _array(mark: bytes, items: list[Reply]) -> Reply:
    wire = b"%b%d\r\n" % (mark, len(items)) + b"".join(item.wire for item in items)
    return Reply(wire, [item.value for item in items])


def _map(pairs: list[tuple[Reply, Reply]]) -> Reply:
    wire = b"%%%d\r\n" % len(pairs) + b"".join(k.wire + v.wire for k, v in pairs)
    return Reply(wire, {k.value: v.value for k, v in pairs})


def _nested(leaves: st.SearchStrategy[Reply], *, resp3: bool) -> st.SearchStrategy[Reply]:
    def several(inner: st.SearchStrategy[Reply]) -> st.SearchStrategy[Reply]:
        items = st.lists(inner, max_size=4)
        arrays = items.map(lambda items: _array(b"*", items))
        if not resp3:
            return arrays
        sets = items.map(lambda items: _array(b"~", items))
        return arrays | sets | st.lists(st.tuples(_keys, inner), max_size=4).map(_map)

    return st.recursive(leaves, several, max_leaves=12)


def _with_attributes(reply: Reply, attributes: Reply) -> Reply:
    return Reply(b"|" + attributes.wire[1:] + reply.wire, reply.value)


resp2 = _nested(_plain, resp3=False)
resp3 = _nested(_plain | _resp3_only, resp3=True)
_any = _nested(_plain | _resp3_only | _ours, resp3=True)
_attributes = st.lists(st.tuples(_keys, _any), max_size=3).map(_map)
anything = _any | st.builds(_with_attributes, _any, _attributes)
"""What may be read, with all that hiredis is no judge of."""
pushes = st.lists(_any, max_size=3).map(lambda items: _array(b">", items).wire)
cuts = st.lists(st.integers(0, 5000), max_size=30) | st.sampled_from([1, 2, 3, 7, 100]).map(
    lambda step: range(0, 3000, step)
)
