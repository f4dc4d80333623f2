"""Commands out, replies in, over one connection and within one deadline."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import redis

from redis_state_sync.connection import Connection, Connector, Pool, remaining
from redis_state_sync.errors import RedisStateSyncError, StoreReplyError, StoreTimeoutError
from redis_state_sync.frames import ReplyTooLargeError
from redis_state_sync.guarded import allow, be_patient
from redis_state_sync.redis_errors import shown, translated
from redis_state_sync.resp import pack, parts

Command = tuple[Any, ...]

# For all replies of one exchange, unless the caller knows better: a thousand large manifests.
LARGEST_REPLIES = 256 << 20


@dataclass(frozen=True, slots=True)
class Batch:
    """Commands that are sent in one go, and how long that may take.

    Args:
        operation: What to call it in messages.
        commands: Each a command and its arguments.
        packed: The chunks to send for each of them.
        deadline: A `time.monotonic()`, for connecting and all else.
        stall: Seconds without a byte after which it is given up earlier.
        allowance: Most bytes that all replies may take.
    """

    operation: str
    commands: Sequence[Command]
    packed: Sequence[list[Any]]
    deadline: float
    stall: float | None
    allowance: int


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
        packed = [pack(*command) for command in commands]
        deadline = time.monotonic() + timeout
        if self._pid != os.getpid():
            self._begin()  # The fork may have copied the lock while another thread held it.
        # A poll must not wait out the upload of another thread.
        if not self._lock.acquire(timeout=timeout):
            raise StoreTimeoutError(f"{self._where}: busy with another call during {operation}")
        try:
            return self._send(Batch(operation, commands, packed, deadline, stall, allowance))
        except RedisStateSyncError:
            raise
        except ReplyTooLargeError as error:
            raise too_large(error, operation, self._where) from error
        except Exception as error:
            raise translated(error, operation, self._where) from shown(error)
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
    chunks = [chunk for command in batch.packed for chunk in command]
    replies: list[Any] = []
    try:
        if not fresh and connection.can_read(timeout=0):
            # What is left over would be taken for the reply to the next command, and that one's
            # for the reply to the one after it, for ever.
            raise redis.ConnectionError("bytes that nobody asked for")
        allow(connection, batch.deadline, batch.stall, batch.allowance)
        for part in parts(chunks):
            be_patient(connection)
            connection.send_packed_command([part], check_health=False)
        for _ in batch.packed:
            try:
                replies.append(connection.read_response(disable_decoding=True))
            except redis.ResponseError as error:
                # An error reply leaves the connection in order. Without its frames: they hold this
                # list, and all that was sent, until the next garbage collection.
                replies.append(error.with_traceback(None))
    except BaseException:
        connection.disconnect()
        raise
    return replies
