"""What a store must do. `RedisStore` and `MemoryStore` do; one contract suite tests every one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from redis_state_sync.errors import SettingsError
from redis_state_sync.keys import Keys
from redis_state_sync.version import Version

# Most bytes that one fetch may take unless the caller knows better.
LARGEST_FETCH = 64 << 30


class Entry(NamedTuple):
    """A version and the bytes of its manifest."""

    version: Version
    manifest: bytes


def check_store(store: object) -> None:
    """Raises `SettingsError` if what should be a store is a URL, a client or anything else."""
    if not callable(getattr(store, "newest", None)):
        raise SettingsError(
            f"store is a {type(store).__name__}: pass open_store('redis://host:6379/0'), or "
            "RedisStore.from_client(client) for a redis-py client of your own"
        )


class Store(Protocol):
    """Versioned manifests and content-addressed blobs.

    `timeout` is the whole time in seconds that a call may take, connecting included. Every call
    may be repeated safely. Every call raises a `StoreError` if it fails.
    """

    @property
    def in_process(self) -> bool:
        """Whether what it holds is in this process's own memory: there is nothing to transfer."""
        ...

    def describe(self) -> str:
        """Where the data is, for people; never a secret."""
        ...

    def server_facts(self, *, timeout: float) -> str:
        """Kind and version of the server in a few words, as far as it may be asked."""
        ...

    def namespaces(self, *, timeout: float) -> list[str]:
        """The namespaces that hold something, sorted. Looks at every key of the server."""
        ...

    def time_ms(self, *, timeout: float) -> int:
        """The store's clock in ms since 1970."""
        ...

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

        `tracked`: have changes noticed, where that is possible; see `mark`.
        """
        ...

    def mark(self) -> Any:
        """What stays equal as long as nothing changed that `newest` was asked for with `tracked`.

        A mark that was taken *before* asking, and is still equal later, says that the answer still
        holds, as far as this process was told: a change takes its time to arrive, and a dead
        connection brings none. None: it can not be told. Waits for no more than the rest of a
        message that has begun to come; never raises.
        """
        ...

    def append(
        self, keys: Keys, version: Version, manifest: bytes, *, ttl_s: float, timeout: float
    ) -> None:
        """Announces a version, and refreshes the expiry of the namespace's own keys.

        Raises:
            NotNewerError: If `version` is not greater than the newest one.
        """
        ...

    def find(
        self, keys: Keys, versions: Sequence[Version], *, timeout: float
    ) -> dict[Version, bytes]:
        """The records of these versions, announced or pinned, as far as they are there."""
        ...

    def refresh(
        self,
        keys: Keys,
        digests: Sequence[str],
        *,
        ttl_s: float,
        timeout: float,
        pinned: Collection[str] = (),
    ) -> set[str]:
        """Refreshes the expiry of versions and these blobs; that of those in `pinned` stays.

        Returns:
            The digests to send again: of these, the ones that are missing; and the one that a
            reader asked for, if any.
        """
        ...

    def put_blobs(
        self, keys: Keys, blobs: Mapping[str, Any], *, ttl_s: float, timeout: float
    ) -> None:
        """Stores blobs (digest -> bytes-like). No reader's request is open after that."""
        ...

    def ask_for_blob(self, keys: Keys, digest: str, *, ttl_s: float, timeout: float) -> None:
        """Asks the learner to send a blob again: the one that is there is missing or damaged.

        One request at a time is kept, the last one. Who still misses another asks again.
        """
        ...

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
        """The blobs in the order asked for; None for one that is gone.

        `limit` is how many bytes they have in all, if they are what the caller expects. Much more
        is refused with a `StoreReplyError` before it is taken into memory.

        `into` says where each is to go. A blob of just this length may be received there: then
        this very view is what is returned. `arrived` may be called with each blob as soon as it is
        here, and with None in between.
        """
        ...

    def pins(self, keys: Keys, *, timeout: float) -> dict[str, Version]:
        """Pin name -> pinned version."""
        ...

    def clear(self, keys: Keys, *, timeout: float) -> int:
        """Removes all that the namespace holds. Looks at every key of the server.

        Returns:
            How many keys were removed.
        """
        ...

    def set_pin(self, keys: Keys, name: str, version: Version, *, timeout: float) -> None:
        """Names a version. That does not expire."""
        ...

    def remove_pin(self, keys: Keys, name: str, *, timeout: float) -> None:
        """Forgets a name."""
        ...

    def keep_record(self, keys: Keys, version: Version, record: bytes, *, timeout: float) -> None:
        """Keeps the record of a pinned version. That does not expire."""
        ...

    def forget_record(self, keys: Keys, version: Version, *, timeout: float) -> None:
        """Forgets what `keep_record` kept. The version may still be an announced one."""
        ...

    def set_expiry(
        self, keys: Keys, digests: Sequence[str], *, ttl_s: float | None, timeout: float
    ) -> set[str]:
        """Has blobs expire after this time, or (None) never.

        Returns:
            The digests of those that are missing.
        """
        ...

    def give_notice(
        self, keys: Keys, versions: Sequence[Version], *, ttl_s: float, timeout: float
    ) -> None:
        """Says which versions are about to be dropped; none: that nothing is.

        Who pins a version looks at it *after* that, and who drops one looks at the pins *after*
        this: at least one of them sees the other. It is gone after `ttl_s`, or when `drop` is done.
        """
        ...

    def notice(self, keys: Keys, *, timeout: float) -> set[Version]:
        """The versions that are about to be dropped."""
        ...

    def expires_in(self, keys: Keys, *, timeout: float) -> float | None:
        """Seconds until the versions expire. None: there are none, or they never do."""
        ...

    def drop(
        self, keys: Keys, versions: Sequence[Version], digests: Sequence[str], *, timeout: float
    ) -> None:
        """Forgets versions and blobs, and ends the notice of it, if versions were given."""
        ...

    def note_reader(
        self, keys: Keys, reader: str, note: str, *, ttl_s: float, timeout: float
    ) -> None:
        """Records what a reader has, for `status`."""
        ...

    def readers(self, keys: Keys, *, timeout: float) -> dict[str, str]:
        """Reader -> its note, see `reader_notes`."""
        ...

    def forget_readers(self, keys: Keys, *, now_ms: int, ttl_s: float, timeout: float) -> None:
        """Drops the notes of readers that were not heard of for `ttl_s`, see `reader_notes`."""
        ...

    def close(self) -> None:
        """Lets go of connections. The store can be used again; it connects anew."""
        ...
