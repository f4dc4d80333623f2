"""Commands out, replies in, over one connection and within one deadline."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import redis

from redis_state_sync.connection import Connector, Pool, remaining
from redis_state_sync.errors import StoreError, StoreReplyError, StoreTimeoutError
from redis_state_sync.frames import ReplyTooLargeError
from redis_state_sync.guarded import allow
from redis_state_sync.redis_errors import shown, translated
from redis_state_sync.resp import pack

Command = tuple[Any, ...]

# For all replies of one exchange, unless the caller knows better: a thousand large manifests.
LARGEST_REPLIES = 256 << 20


class Exchange:
    """Talks to one server. Safe for threads, which take turns, and after a fork.

    Args:
        make: Makes the pool whose connections are used.
        where: The server, for messages; must hold no secret.
    """

    def __init__(self, make: Callable[[], Pool], where: str) -> None:
        self._make = make
        self._where = where
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._connector = Connector(self._make, self._where)

    def close(self) -> None:
        """Closes the connection; the next call makes a new one."""
        self._connector.close()

    def run(
        self,
        operation: str,
        commands: Sequence[Command],
        timeout: float,
        *,
        stall: float | None = None,
        allowance: int = LARGEST_REPLIES,
    ) -> list[Any]:
        """Sends commands in one go and reads a reply to each.

        A connection that the server closed in the meantime is replaced once; so every command
        must be safe to repeat.

        Args:
            operation: What to call it in messages.
            commands: Each a command and its arguments.
            timeout: Seconds for all of it, waiting for another thread and connecting included.
            stall: Seconds without a byte after which it is given up earlier.
            allowance: Most bytes that all replies may take.

        Returns:
            The replies; an error reply as an exception in its place.

        Raises:
            StoreError: If the server can not be reached, does not answer in time, or sends more
                than `allowance`.
        """
        packed = [chunk for command in commands for chunk in pack(*command)]
        deadline = time.monotonic() + timeout
        if self._pid != os.getpid():
            self._begin()  # The fork may have copied the lock while another thread held it.
        # A poll must not wait out the upload of another thread.
        if not self._lock.acquire(timeout=timeout):
            raise StoreTimeoutError(f"{self._where}: busy with another call during {operation}")
        try:
            while True:
                fresh = True
                connection = None
                try:
                    connection, fresh = self._connector.acquire(remaining(deadline))
                    allow(connection, deadline, stall, allowance)
                    replies = _converse(connection, packed, len(commands))
                except BaseException as error:
                    if connection is not None:
                        connection.disconnect()
                    closed = isinstance(error, (redis.ConnectionError, OSError))
                    if closed and not fresh and not isinstance(error, TimeoutError):
                        continue
                    if isinstance(error, ReplyTooLargeError):
                        raise self._too_large(operation, error) from error
                    if isinstance(error, StoreError) or not isinstance(error, Exception):
                        raise
                    raise translated(error, operation, self._where) from shown(error)
                if any(isinstance(reply, redis.ReadOnlyError) for reply in replies):
                    # A demoted primary: find the new one, whose name or sentinels know it.
                    connection.disconnect()
                else:
                    self._connector.release(connection)
                return replies
        finally:
            self._lock.release()

    def _too_large(self, operation: str, error: ReplyTooLargeError) -> StoreReplyError:
        return StoreReplyError(
            f"{self._where}: a reply during {operation} was refused: {error}. Did someone replace "
            "what is stored, or is this no Redis or Valkey server?"
        )


def _converse(connection: Any, packed: list[Any], count: int) -> list[Any]:
    connection.send_packed_command(packed, check_health=False)
    replies: list[Any] = []
    for _ in range(count):
        try:
            replies.append(connection.read_response(disable_decoding=True))
        except redis.ResponseError as error:
            replies.append(error)  # An error reply leaves the connection in order.
    return replies
