"""Commands in Redis' own protocol, with large arguments left where they are.

https://redis.io/docs/latest/develop/reference/protocol-spec/ : an array of bulk strings. redis-py's
packers copy large buffers; here they go to the socket as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

_LARGE = 16 << 10
# A socket's timeout is for all that is handed to it at once. On a line that brings so much within
# `stall_timeout_s`, an upload is slow, and not stalled.
AT_ONCE = 64 << 10


class Request(NamedTuple):
    """One command on its way.

    Args:
        chunks: The bytes to send, see `pack`.
        into: Where a reply that is a value of just this length is to go.
    """

    chunks: list[Any]
    into: memoryview | None = None


def pack(*arguments: Any) -> list[Any]:
    """Returns the chunks to send for one command: few, and large buffers uncopied."""
    chunks: list[Any] = []
    pending = [b"*%d\r\n" % len(arguments)]
    for argument in arguments:
        if isinstance(argument, str):
            argument = argument.encode()
        elif isinstance(argument, int):
            argument = b"%d" % argument
        elif not isinstance(argument, bytes):
            argument = memoryview(argument).cast("B")
        size = len(argument)
        pending.append(b"$%d\r\n" % size)
        if size > _LARGE:
            chunks += [b"".join(pending), argument]
            pending = [b"\r\n"]
        else:
            pending += [bytes(argument), b"\r\n"]
    chunks.append(b"".join(pending))
    return chunks


pack_again = lru_cache(maxsize=16)(pack)
"""The same, for commands of short texts and numbers that are sent again and again."""


def parts(chunks: Iterable[Any]) -> Iterator[Any]:
    """The same bytes, at most `AT_ONCE` of them at a time."""
    for chunk in chunks:
        if len(chunk) <= AT_ONCE:
            yield chunk
            continue
        view = memoryview(chunk)
        for start in range(0, len(view), AT_ONCE):
            yield view[start : start + AT_ONCE]
