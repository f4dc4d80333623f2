"""The store on Redis or Valkey: commands of the string, stream, hash and expire families only."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import redis

from redis_state_sync.cluster import Address
from redis_state_sync.cluster_exchange import ClusterExchange
from redis_state_sync.connection import Pool, remaining
from redis_state_sync.endpoint import Endpoint
from redis_state_sync.errors import (
    NotNewerError,
    StoreError,
    StoreReplyError,
    StoreUnavailableError,
)
from redis_state_sync.exchange import LARGEST_REPLIES, Command, Exchange
from redis_state_sync.keys import PREFIX, RESEND, Keys, namespaces_of
from redis_state_sync.manifest import MAX_MANIFEST_BYTES
from redis_state_sync.pools import ClientPool, EndpointPools
from redis_state_sync.reader_notes import outdated
from redis_state_sync.redis_errors import reply_error, shown
from redis_state_sync.redis_pins import RedisPins, whole
from redis_state_sync.replies import (
    FIELD,
    entries,
    milliseconds,
    pairs,
    primaries,
    scanned,
    server_version,
)
from redis_state_sync.settings import Settings
from redis_state_sync.store import LARGEST_FETCH, Entry
from redis_state_sync.version import Version

ReadT = TypeVar("ReadT")

# Large enough that round trips do not count, small enough that a server serves others in between.
BATCH_BYTES = 8 << 20
UNLINK_BATCH = 16
HDEL_BATCH = 1000
SCAN_BATCH = 1000
# Longer than a server takes for a small command, unless it hangs: then the publisher, which may
# have a minute for all of a version, must be free for the server that a failover puts in its place.
REPLY_TIMEOUT_S = 2.0
SMALLEST_BULK_LIMIT = 1 << 20  # No server can be told to take less.
# What a reply takes besides its value, and signing besides a manifest. Ample: a blob that is a
# little longer than it should be is still read, and said to be damaged.
_OVERHEAD = 4 << 10


class RedisStore(RedisPins):
    """A `Store` over one connection.

    Constructed means usable: it connects when first asked, connects anew after an error or a
    fork, and travels to other processes without its connection.

    Args:
        make: Makes the redis-py pool whose connections are used. Called when first needed.
        where: The server, for messages; must hold no secret.
        stall_timeout_s: Seconds without a byte after which a transfer is given up.
        cluster: Nodes of a cluster to begin with; `make` is then told which node's pool to make.
    """

    def __init__(
        self,
        make: Callable[..., Pool],
        where: str,
        *,
        stall_timeout_s: float = 0.5,
        cluster: Sequence[Address] = (),
    ) -> None:
        self._make = make
        self._where = where
        self._stall_timeout_s = stall_timeout_s
        self._cluster = tuple(cluster)
        self._exchange = (
            ClusterExchange(make, self._cluster, where) if cluster else Exchange(make, where)
        )

    in_process = False

    @classmethod
    def from_endpoint(cls, endpoint: Endpoint, settings: Settings) -> RedisStore:
        """A store at a parsed URL."""
        return cls(
            EndpointPools(endpoint, settings),
            endpoint.describe(),
            stall_timeout_s=settings.stall_timeout_s,
            cluster=endpoint.hosts if endpoint.cluster else (),
        )

    @classmethod
    def from_client(cls, client: redis.Redis, where: str = "redis client") -> RedisStore:
        """A store over the pool of a ready client: one you configured yourself, or FakeRedis.

        Raises:
            SettingsError: If it is not a synchronous client of one server.
        """
        return cls(ClientPool(client), where)

    def __repr__(self) -> str:
        return f"RedisStore({self._where!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {
            "make": self._make,
            "where": self._where,
            "stall_timeout_s": self._stall_timeout_s,
            "cluster": self._cluster,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def describe(self) -> str:
        """Where the data is; never a secret."""
        return self._where

    def close(self) -> None:
        """Closes the connection. The store can be used again; it connects anew."""
        self._exchange.close()

    def server_facts(self, *, timeout: float) -> str:
        """Kind and version of the server; the right to INFO is not needed."""
        try:
            (reply,) = self._run("info", [("INFO", "server")], timeout)
        except StoreUnavailableError:
            raise
        except StoreError:  # INFO is a right, and a section, that not every server grants.
            return "version unknown"
        return self._read("INFO", server_version, reply)

    def ask(self, commands: Sequence[Command], *, timeout: float) -> list[Any]:
        """Raw replies to a few commands; in the place of a refused one, a `StoreError`.

        For looking at a server, not at states. Of a cluster some node answers.
        """
        replies = self._run("doctor", commands, timeout, check=False)
        return [
            reply_error(reply, str(command[0]), self._where)
            if isinstance(reply, Exception)
            else reply
            for command, reply in zip(commands, replies, strict=True)
        ]

    def namespaces(self, *, timeout: float) -> list[str]:
        """The namespaces that hold something, sorted; of a cluster, those on all its primaries."""
        return namespaces_of(self._scan(f"{PREFIX}:{{*}}:*", time.monotonic() + timeout))

    def clear(self, keys: Keys, *, timeout: float) -> int:
        """Removes all that the namespace holds, a few keys at a time."""
        deadline = time.monotonic() + timeout
        # No name of a namespace holds what is special in a pattern.
        gone = keys.owned(self._scan(keys.blob("*").removesuffix("blob:*") + "*", deadline))
        for start in range(0, len(gone), UNLINK_BATCH):
            unlinks = [("UNLINK", key) for key in gone[start : start + UNLINK_BATCH]]
            self._run("clear", unlinks, remaining(deadline), stall=REPLY_TIMEOUT_S)
        return len(gone)

    def _scan(self, pattern: str, deadline: float) -> Iterator[str]:
        """The keys of this form, some perhaps twice; of a cluster, those on all its primaries."""
        if self._cluster:
            (reply,) = self._run("list", [("CLUSTER", "SLOTS")], remaining(deadline))
            for address in self._read("CLUSTER", primaries, reply):
                node = RedisStore(partial(self._make, address), self._where)
                try:
                    yield from node._scan(pattern, deadline)
                finally:
                    node.close()
            return
        cursor = b"0"
        while True:
            command = ("SCAN", cursor, "MATCH", pattern, "COUNT", SCAN_BATCH)
            (reply,) = self._run("list", [command], remaining(deadline), stall=REPLY_TIMEOUT_S)
            cursor, found = self._read("SCAN", scanned, reply)
            yield from map(_shown, found)
            if cursor == b"0":
                return

    def time_ms(self, *, timeout: float) -> int:
        """The server's clock in ms since 1970."""
        (reply,) = self._run("time", [("TIME",)], timeout)
        return self._read("TIME", milliseconds, reply)

    def newest(
        self,
        keys: Keys,
        *,
        after: Version | None = None,
        count: int = 1,
        timeout: float,
        tracked: bool = False,
    ) -> list[Entry]:
        """At most `count` entries, newest first, strictly newer than `after`.

        One round trip, atomic. The start is the id next to `after`: servers before Redis 6.2 know
        no exclusive one, https://redis.io/docs/latest/commands/xrange/
        """
        start = "-" if after is None else after.next_id()
        if start is None:
            return []
        command = ("XREVRANGE", keys.versions, "+", start, "COUNT", count)
        allowance = min(count * (MAX_MANIFEST_BYTES + _OVERHEAD), LARGEST_REPLIES)
        (reply,) = self._exchange.run(
            "poll",
            [command],
            timeout,
            stall=REPLY_TIMEOUT_S,
            allowance=allowance,
            again=True,
            tracked=tracked,
        )
        if reply == []:
            return []
        self._check("poll", [reply])
        return self._read("XREVRANGE", entries, reply)

    def mark(self) -> Any:
        """See `Store.mark`."""
        return self._exchange.mark()

    def append(
        self, keys: Keys, version: Version, manifest: bytes, *, ttl_s: float, timeout: float
    ) -> None:
        """Announces a version.

        The server refuses an id that is not greater than the newest, which fences a paused or
        partitioned older learner without lock or script.

        Raises:
            NotNewerError: If it does.
        """
        ttl = whole(ttl_s)
        replies = self._run(
            "publish",
            [
                ("XADD", keys.versions, str(version), FIELD, manifest),
                ("EXPIRE", keys.versions, ttl),
                ("EXPIRE", keys.readers, ttl),
            ],
            timeout,
            stall=REPLY_TIMEOUT_S,
            check=False,
        )
        added = replies[0]
        if isinstance(added, redis.ResponseError) and "equal or smaller" in str(added):
            raise NotNewerError(
                f"{self._where}: version {version} is not greater than the newest one"
            )
        self._check("publish", replies)

    def refresh(
        self,
        keys: Keys,
        digests: Sequence[str],
        *,
        ttl_s: float,
        timeout: float,
        pinned: Collection[str] = (),
    ) -> set[str]:
        """Refreshes expiries; returns the digests to send again."""
        ttl = whole(ttl_s)
        commands: list[Command] = [("HGET", keys.readers, RESEND), ("EXPIRE", keys.versions, ttl)]
        commands += [
            ("EXISTS", keys.blob(d)) if d in pinned else ("EXPIRE", keys.blob(d), ttl)
            for d in digests
        ]
        asked_for, _, *replies = self._run("refresh", commands, timeout, stall=REPLY_TIMEOUT_S)
        missing = {d for d, reply in zip(digests, replies, strict=True) if reply != 1}
        if isinstance(asked_for, bytes):
            missing.add(asked_for.decode("ascii", "replace"))
        return missing

    def put_blobs(
        self, keys: Keys, blobs: Mapping[str, Any], *, ttl_s: float, timeout: float
    ) -> None:
        """Stores blobs, and closes a reader's request."""
        # When the last byte was handed to the kernel, megabytes may still be on their way.
        stall = max(self._stall_timeout_s, REPLY_TIMEOUT_S)
        deadline = time.monotonic() + timeout
        ttl = whole(ttl_s)
        for batch in _batches(blobs.items(), lambda item: len(item[1])):
            commands: list[Command] = [
                ("SET", keys.blob(digest), data, "EX", ttl) for digest, data in batch
            ]
            commands.append(("HDEL", keys.readers, RESEND))
            try:
                self._run("upload", commands, remaining(deadline), stall=stall)
            except StoreUnavailableError as error:
                largest = max(len(data) for _, data in batch)
                if type(error) is not StoreUnavailableError or largest <= SMALLEST_BULK_LIMIT:
                    raise
                # A server that finds a value too long says so and hangs up in the middle of our
                # sending; all that is left to see is a broken pipe.
                raise StoreUnavailableError(
                    f"{error} (if only uploads fail: the server's proto-max-bulk-len, "
                    "client-query-buffer-limit and maxmemory-clients must allow values of "
                    f"{largest} bytes)"
                ) from error

    def ask_for_blob(self, keys: Keys, digest: str, *, ttl_s: float, timeout: float) -> None:
        """Asks the learner to send a blob again."""
        self.note_reader(keys, RESEND, digest, ttl_s=ttl_s, timeout=timeout)

    def get_blobs(
        self,
        keys: Keys,
        digests: Sequence[str],
        *,
        timeout: float,
        limit: int = LARGEST_FETCH,
        into: Sequence[memoryview] = (),
        arrived: Callable[[Any], None] | None = None,
    ) -> list[bytes | memoryview | None]:
        """The blobs in the order asked for; None for one that is gone."""
        deadline = time.monotonic() + timeout
        blobs: list[bytes | memoryview | None] = []
        for start in range(0, len(digests), UNLINK_BATCH):
            batch = digests[start : start + UNLINK_BATCH]
            commands = [("GET", keys.blob(digest)) for digest in batch]
            try:
                blobs += self._run(
                    "fetch",
                    commands,
                    remaining(deadline),
                    stall=self._stall_timeout_s,
                    allowance=limit + len(batch) * _OVERHEAD,
                    into=into[start : start + UNLINK_BATCH],
                    arrived=arrived,
                )
            except StoreUnavailableError as error:
                if type(error) is not StoreUnavailableError:
                    raise
                # A server that may not hold so much for one client hangs up without a word.
                raise StoreUnavailableError(
                    f"{error} (if only fetches fail: the server's client-output-buffer-limit "
                    "normal and maxmemory-clients must allow replies of 64 MiB, or be 0)"
                ) from error
            for blob in blobs[start:]:
                if blob is not None and not isinstance(blob, (bytes, memoryview)):
                    raise self._unexpected("GET")
                limit -= len(blob or b"")
        return blobs

    def drop(
        self, keys: Keys, versions: Sequence[Version], digests: Sequence[str], *, timeout: float
    ) -> None:
        """Forgets versions, then blobs, a few at a time: deleting much at once stalls others."""
        deadline = time.monotonic() + timeout
        if versions:
            ids = [str(version) for version in versions]
            commands = [("XDEL", keys.versions, *ids)]
            # No later than its notice says, or never.
            at_most = min(timeout, REPLY_TIMEOUT_S)
            self._run("drop", commands, at_most, stall=REPLY_TIMEOUT_S)
        gone = [*map(keys.blob, digests), *([keys.dropping] if versions else [])]
        for start in range(0, len(gone), UNLINK_BATCH):
            # One key each: a cluster refuses a command of which some keys have moved already.
            unlinks = [("UNLINK", key) for key in gone[start : start + UNLINK_BATCH]]
            self._run("drop", unlinks, remaining(deadline), stall=REPLY_TIMEOUT_S)

    def note_reader(
        self, keys: Keys, reader: str, note: str, *, ttl_s: float, timeout: float
    ) -> None:
        """Records what a reader has, for `status`."""
        commands: list[Command] = [
            ("HSET", keys.readers, reader, note),
            ("EXPIRE", keys.readers, whole(ttl_s)),
        ]
        self._run("note", commands, timeout)

    def readers(self, keys: Keys, *, timeout: float) -> dict[str, str]:
        """Reader -> its note."""
        notes = self._hash("readers", keys.readers, timeout)
        shown_notes = {_shown(name): _shown(note) for name, note in notes.items()}
        return {name: note for name, note in shown_notes.items() if name != RESEND}

    def forget_readers(self, keys: Keys, *, now_ms: int, ttl_s: float, timeout: float) -> None:
        """Drops the notes of readers that were not heard of for `ttl_s`."""
        deadline = time.monotonic() + timeout
        notes = self._hash("readers", keys.readers, timeout)
        gone = outdated(notes, now_ms, ttl_s)
        for start in range(0, len(gone), HDEL_BATCH):
            command = ("HDEL", keys.readers, *gone[start : start + HDEL_BATCH])
            self._run("readers", [command], remaining(deadline), stall=REPLY_TIMEOUT_S)

    def _hash(self, operation: str, key: str, timeout: float) -> dict[bytes, bytes]:
        (reply,) = self._run(operation, [("HGETALL", key)], timeout, stall=REPLY_TIMEOUT_S)
        return self._read("HGETALL", pairs, reply)

    def _run(
        self,
        operation: str,
        commands: Sequence[Command],
        timeout: float,
        *,
        stall: float | None = None,
        allowance: int = LARGEST_REPLIES,
        into: Sequence[memoryview | None] = (),
        arrived: Callable[[Any], None] | None = None,
        check: bool = True,
    ) -> list[Any]:
        """The replies to some commands; with `check`, an error reply raises."""
        replies = self._exchange.run(
            operation,
            commands,
            timeout,
            stall=stall,
            allowance=allowance,
            into=into,
            arrived=arrived,
        )
        if check:
            self._check(operation, replies)
        return replies

    def _check(self, operation: str, replies: Iterable[Any]) -> None:
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply_error(reply, operation, self._where) from shown(reply)

    def _read(self, command: str, read: Callable[[Any], ReadT], reply: Any) -> ReadT:
        try:
            return read(reply)
        except (TypeError, ValueError) as error:
            raise self._unexpected(command) from error

    def _unexpected(self, command: str) -> StoreReplyError:
        self.close()  # Perhaps it was the reply to another command.
        return StoreReplyError(
            f"{self._where}: unexpected reply to {command}; is this a Redis or Valkey server, "
            "and is the namespace used by something else?"
        )


def _shown(text: bytes) -> str:
    return text.decode("utf-8", "replace")


def _batches(items: Iterable[Any], size: Callable[[Any], int]) -> Iterable[list[Any]]:
    batch: list[Any] = []
    total = 0
    for item in items:
        if batch and total + size(item) > BATCH_BYTES:
            yield batch
            batch, total = [], 0
        batch.append(item)
        total += size(item)
    if batch:
        yield batch
