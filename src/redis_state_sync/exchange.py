"""Commands out, replies in, over one connection and within one deadline."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import redis

from redis_state_sync.connection import Connection, Connector, Pool, remaining
from redis_state_sync.errors import RedisStateSyncError, StoreReplyError, StoreTimeoutError
from redis_state_sync.frames import ReplyTooLargeError
from redis_state_sync.line import line_over
from redis_state_sync.redis_errors import shown, translated
from redis_state_sync.resp import Request, pack, pack_again
from redis_state_sync.resp_reader import MalformedReplyError
from redis_state_sync.tracking import Mark, ask, ask_tracked, mark_of

Command = tuple[Any, ...]

# For all replies of one exchange, unless the caller knows better: a thousand large manifests.
LARGEST_REPLIES = 256 << 20


class Batch(NamedTuple):
    """Commands that are sent in one go, and how long that may take.

    Args:
        operation: What to call it in messages.
        commands: Each a command and its arguments.
        requests: What to send for each of them, and where a large reply goes.
        deadline: A `time.monotonic()`, for connecting and all else.
        stall: Seconds without a byte after which it is given up earlier.
        allowance: Most bytes that all replies may take.
        arrived: Called with each reply, and with None while a large one comes.
        tracked: Whether the server is to say when what the one command reads may have changed.
    """

    operation: str
    commands: Sequence[Command]
    requests: Sequence[Request]
    deadline: float
    stall: float | None
    allowance: int
    arrived: Callable[[Any], None] | None = None
    tracked: bool = False


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
        if self._pid != os.getpid():
            self._begin()  # Without the parent's, and without a lock that a fork may have copied.
        self._connector.close()

    def run(
        self,
        operation: str,
        commands: Sequence[Command],
        timeout: float,
        *,
        stall: float | None = None,
        allowance: int = LARGEST_REPLIES,
        into: Sequence[memoryview | None] = (),
        arrived: Callable[[Any], None] | None = None,
        again: bool = False,
        tracked: bool = False,
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
            into: For each command, where a value of just this length is to go if that can be done;
                the reply is this buffer then. What is in it after an error is undefined.
            arrived: Called with each reply as soon as it is here, of a cluster also with those that
                are no answer yet; and now and then with None, while a large one comes.
            again: Whether it is worth while to remember what to send. The commands must consist of
                short texts and numbers.
            tracked: Whether the server is to say when what the one command reads may have changed,
                see `mark`.

        Returns:
            The replies; an error reply as an exception in its place.

        Raises:
            StoreError: If the server can not be reached, does not answer in time, or sends more
                than `allowance`.
        """
        deadline = time.monotonic() + timeout
        packer = pack_again if again else pack
        requests = [Request(packer(*command)) for command in commands]
        if into:
            requests = [Request(r.chunks, view) for r, view in zip(requests, into, strict=True)]
        if self._pid != os.getpid():
            self._begin()  # The fork may have copied the lock while another thread held it.
        # A poll must not wait out the upload of another thread.
        if not self._lock.acquire(timeout=timeout):
            raise StoreTimeoutError(f"{self._where}: busy with another call during {operation}")
        try:
            return self._send(
                Batch(operation, commands, requests, deadline, stall, allowance, arrived, tracked)
            )
        except RedisStateSyncError:
            raise
        except ReplyTooLargeError as error:
            raise too_large(error, operation, self._where) from error
        except Exception as error:
            raise translated(error, operation, self._where) from shown(error)
        finally:
            self._lock.release()

    def mark(self) -> Mark | None:
        """What stays the same as long as nothing changed that was read with `tracked`.

        A mark that was taken *before* asking, and is still the same later, says that the reply
        still holds. None: that can not be told. Waits for no more than the rest of a message
        that has begun to come. What is wrong with the connection, the next call says.
        """
        if self._pid != os.getpid() or not self._lock.acquire(blocking=False):
            return None
        try:
            connection = self._connector.idle
            if connection is None:
                return None
            try:
                return mark_of(connection)
            except (OSError, redis.RedisError, ReplyTooLargeError, MalformedReplyError):
                connection.disconnect()
                return None  # The next call finds out why.
            except BaseException:
                connection.disconnect()  # Perhaps in the middle of a message.
                raise
        finally:
            self._lock.release()

    def _send(self, batch: Batch) -> list[Any]:
        while True:
            connection, fresh = self._connector.acquire(remaining(batch.deadline))
            try:
                replies = converse(connection, batch, fresh=fresh)
            except TimeoutError:
                raise  # It is no use to ask again.
            except (redis.ConnectionError, OSError):
                if fresh:
                    raise
                continue
            if is_demoted(replies):
                connection.disconnect()  # Find the new primary, whose name or sentinels know it.
            else:
                self._connector.release(connection)
            return replies


def too_large(error: ReplyTooLargeError, operation: str, where: str) -> StoreReplyError:
    """What to say of a reply that no honest server gives."""
    return StoreReplyError(
        f"{where}: a reply during {operation} was refused: {error}. Did someone replace "
        "what is stored, or is this no Redis or Valkey server?"
    )


def is_demoted(replies: Sequence[Any]) -> bool:
    """Whether they are those of a primary that became a replica."""
    return any(isinstance(reply, redis.ReadOnlyError) for reply in replies)


def converse(connection: Connection, batch: Batch, *, fresh: bool) -> list[Any]:
    """Sends a batch and reads a reply to each command; an error reply as an exception.

    Args:
        connection: A live one.
        batch: What to send.
        fresh: Whether the connection was never used before.

    Raises:
        Exception: Of redis-py or the socket, if that fails. The connection is closed then.
    """
    try:
        line = line_over(connection)
        progress = None if batch.arrived is None else partial(batch.arrived, None)
        line.begin(batch.deadline, batch.stall, batch.allowance, progress)
        if not fresh:
            line.check_quiet()
        if batch.tracked:
            return [ask_tracked(line, batch.requests[0])]
        return ask(line, batch.requests, batch.arrived)
    except BaseException:
        connection.disconnect()
        raise
