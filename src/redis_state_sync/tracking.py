"""Server-assisted tracking: the server says by itself when what was read may have changed.

https://redis.io/docs/latest/develop/reference/client-side-caching/ : with OPTIN, the keys of the
one command behind CLIENT CACHING YES are remembered until any of them changes, expires or is
evicted, or the server forgets: then a message comes, once. A reader to whom none came need not ask.

It needs RESP3, the bare socket, and the rights to CLIENT TRACKING and CLIENT CACHING.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from redis_state_sync.guarded import GuardedSocket
from redis_state_sync.line import Connection, Line, SocketLine
from redis_state_sync.resp import Request, pack

Mark = tuple[int, int]

_ON = pack("CLIENT", "TRACKING", "ON", "OPTIN")
_THE_NEXT_ONE = pack("CLIENT", "CACHING", "YES")
# For messages that came while nobody looked: each is shorter than a key and a line.
MESSAGE_BYTES = 1 << 20
# For the rest of a message that has begun to come.
MESSAGE_S = 0.01


def ask(
    line: Line, requests: Sequence[Request], arrived: Callable[[Any], None] | None = None
) -> list[Any]:
    """Sends commands in one go and reads a reply to each, which `arrived` is told at once.

    Raises:
        As `Line`.
    """
    line.send([chunk for request in requests for chunk in request.chunks])
    replies = []
    for request in requests:
        replies.append(line.read(request.into))
        if arrived is not None:
            arrived(replies[-1])
    return replies


def ask_tracked(line: Line, request: Request) -> Any:
    """Sends one command that reads, reads its reply, and has its keys tracked where that is so.

    Raises:
        As `Line`.
    """
    if not isinstance(line, SocketLine) or not _tracks(line):
        line.send(request.chunks)
        return line.read(request.into)
    line.send([*_THE_NEXT_ONE, *request.chunks])
    if isinstance(line.read(None), Exception):
        line.can_track = False
    return line.read(request.into)


def _tracks(line: SocketLine) -> bool:
    if line.can_track and not line.tracks:
        line.send(_ON)
        line.can_track = line.tracks = not isinstance(line.read(None), Exception)
    return line.can_track


def mark_of(connection: Connection) -> Mark | None:
    """What stays the same as long as nothing changed that `ask_tracked` read on this connection.

    A mark that was taken *before* asking, and is still the same later, says that the reply still
    holds. None: that can not be told.

    Args:
        connection: A live one that nobody else uses now.

    Raises:
        As `Line`, if the connection is lost.
    """
    guard = connection._sock
    line = guard.line if isinstance(guard, GuardedSocket) else None
    if not isinstance(line, SocketLine) or not line.can_track or not line.tracks:
        return None
    if not line.is_quiet():
        line.begin(time.monotonic() + MESSAGE_S, None, MESSAGE_BYTES)
        line.check_quiet()
    return line.serial, line.pushes
