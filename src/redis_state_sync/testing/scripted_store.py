"""A store whose failures the test scripts."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from redis_state_sync.errors import StoreTimeoutError
from redis_state_sync.keys import Keys
from redis_state_sync.store import LARGEST_FETCH, Entry, Store
from redis_state_sync.version import Version

T = TypeVar("T")


class ScriptedStore:
    """Hands every call to another store, unless the test said otherwise::

        store = ScriptedStore(MemoryStore())
        store.fail_next("newest", StoreTimeoutError("no answer"), times=3)
        store.lose_reply("append", StoreTimeoutError("reply lost"))
        with store.paused("put_blobs"):
            ...
        assert store.calls["get_blobs"] == 0

    Operations are named as the methods of `Store` that can fail; any other name is refused.

    Args:
        inner: The store that does the work.
    """

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.calls: Counter[str] = Counter()
        """How often each operation was called."""
        self._changed = threading.Condition()
        self._errors: dict[str, list[Exception]] = {}
        self._lost: dict[str, list[Exception]] = {}
        self._down: Exception | None = None
        self._delays: dict[str, float] = {}
        self._paused: set[str] = set()
        self._corrupt: set[str] = set()
        self._missing: set[str] = set()

    def fail_next(self, operation: str, error: Exception, *, times: int = 1) -> None:
        """The next calls of `operation` raise `error` and do nothing."""
        self._errors.setdefault(self._known(operation), []).extend([error] * times)

    def lose_reply(self, operation: str, error: Exception, *, times: int = 1) -> None:
        """The next calls of `operation` do their work, then raise `error`."""
        self._lost.setdefault(self._known(operation), []).extend([error] * times)

    def go_down(self, error: Exception) -> None:
        """Every call raises `error`, until `come_back`."""
        self._down = error

    def come_back(self) -> None:
        """Ends `go_down`."""
        self._down = None

    def delay(self, operation: str, seconds: float) -> None:
        """Calls of `operation` take this much longer; `StoreTimeoutError` if they may not."""
        self._delays[self._known(operation)] = seconds

    def corrupt(self, digest: str) -> None:
        """From now on this blob is read with one bit flipped."""
        self._corrupt.add(digest)

    def lose_blob(self, digest: str) -> None:
        """From now on this blob is read as missing."""
        self._missing.add(digest)

    @contextmanager
    def paused(self, operation: str) -> Iterator[None]:
        """Within this block calls of `operation` wait for its end."""
        self._paused.add(self._known(operation))
        try:
            yield
        finally:
            with self._changed:
                self._paused.discard(operation)
                self._changed.notify_all()

    def wait_for_calls(self, operation: str, count: int, *, timeout: float = 10.0) -> None:
        """Waits until `operation` was called at least `count` times, finished or not.

        Raises:
            AssertionError: If that takes longer than `timeout` seconds.
        """
        self._known(operation)
        with self._changed:
            if not self._changed.wait_for(lambda: self.calls[operation] >= count, timeout):
                raise AssertionError(
                    f"{operation} was called {self.calls[operation]} times, not {count}"
                )

    def _known(self, operation: str) -> str:
        known = not operation.startswith("_") and callable(getattr(Store, operation, None))
        if not known or operation in ("describe", "close"):
            raise ValueError(f"{operation!r} is not an operation of a Store")
        return operation

    def _call(self, operation: str, timeout: float, call: Callable[[], T]) -> T:
        with self._changed:
            self.calls[operation] += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: operation not in self._paused)
            if self._down is not None:
                # Without the frames of earlier callers, which would add up.
                raise self._down.with_traceback(None)
            if self._errors.get(operation):
                raise self._errors[operation].pop(0)
        seconds = self._delays.get(operation, 0.0)
        if seconds:
            time.sleep(min(seconds, timeout))
            if seconds > timeout:
                raise StoreTimeoutError(f"{self.describe()}: no answer in time during {operation}")
        result = call()
        with self._changed:
            if self._lost.get(operation):
                raise self._lost[operation].pop(0)
        return result

    def describe(self) -> str:
        """Where the data is."""
        return f"scripted {self.inner.describe()}"

    def server_facts(self, *, timeout: float) -> str:
        """As the inner store's."""
        return self._call("server_facts", timeout, lambda: self.inner.server_facts(timeout=timeout))

    def namespaces(self, *, timeout: float) -> list[str]:
        """As the inner store's."""
        return self._call("namespaces", timeout, lambda: self.inner.namespaces(timeout=timeout))

    def time_ms(self, *, timeout: float) -> int:
        """As the inner store's."""
        return self._call("time_ms", timeout, lambda: self.inner.time_ms(timeout=timeout))

    @property
    def in_process(self) -> bool:
        """As the inner store's."""
        return self.inner.in_process

    def mark(self) -> None:
        """None: every poll is an event that a script may fail."""

    def newest(
        self,
        keys: Keys,
        *,
        after: Version | None = None,
        count: int = 1,
        timeout: float,
        tracked: bool = False,
    ) -> list[Entry]:
        """As the inner store's."""
        return self._call(
            "newest",
            timeout,
            lambda: self.inner.newest(keys, after=after, count=count, timeout=timeout),
        )

    def append(
        self, keys: Keys, version: Version, manifest: bytes, *, ttl_s: float, timeout: float
    ) -> None:
        """As the inner store's."""
        self._call(
            "append",
            timeout,
            lambda: self.inner.append(keys, version, manifest, ttl_s=ttl_s, timeout=timeout),
        )

    def find(
        self, keys: Keys, versions: Sequence[Version], *, timeout: float
    ) -> dict[Version, bytes]:
        """As the inner store's."""
        return self._call("find", timeout, lambda: self.inner.find(keys, versions, timeout=timeout))

    def refresh(
        self,
        keys: Keys,
        digests: Sequence[str],
        *,
        ttl_s: float,
        timeout: float,
        pinned: Collection[str] = (),
    ) -> set[str]:
        """As the inner store's."""
        return self._call(
            "refresh",
            timeout,
            lambda: self.inner.refresh(keys, digests, ttl_s=ttl_s, timeout=timeout, pinned=pinned),
        )

    def put_blobs(
        self, keys: Keys, blobs: Mapping[str, Any], *, ttl_s: float, timeout: float
    ) -> None:
        """As the inner store's."""
        self._call(
            "put_blobs",
            timeout,
            lambda: self.inner.put_blobs(keys, blobs, ttl_s=ttl_s, timeout=timeout),
        )

    def ask_for_blob(self, keys: Keys, digest: str, *, ttl_s: float, timeout: float) -> None:
        """As the inner store's."""
        self._call(
            "ask_for_blob",
            timeout,
            lambda: self.inner.ask_for_blob(keys, digest, ttl_s=ttl_s, timeout=timeout),
        )

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
        """As the inner store's, but for what `corrupt` and `lose_blob` were told."""
        blobs = self._call(
            "get_blobs",
            timeout,
            lambda: self.inner.get_blobs(keys, digests, timeout=timeout, limit=limit),
        )
        return [self._as_told(d, blob) for d, blob in zip(digests, blobs, strict=True)]

    def pins(self, keys: Keys, *, timeout: float) -> dict[str, Version]:
        """As the inner store's."""
        return self._call("pins", timeout, lambda: self.inner.pins(keys, timeout=timeout))

    def clear(self, keys: Keys, *, timeout: float) -> int:
        """As the inner store's."""
        return self._call("clear", timeout, lambda: self.inner.clear(keys, timeout=timeout))

    def set_pin(self, keys: Keys, name: str, version: Version, *, timeout: float) -> None:
        """As the inner store's."""
        self._call(
            "set_pin", timeout, lambda: self.inner.set_pin(keys, name, version, timeout=timeout)
        )

    def keep_record(self, keys: Keys, version: Version, record: bytes, *, timeout: float) -> None:
        """As the inner store's."""
        self._call(
            "keep_record",
            timeout,
            lambda: self.inner.keep_record(keys, version, record, timeout=timeout),
        )

    def remove_pin(self, keys: Keys, name: str, *, timeout: float) -> None:
        """As the inner store's."""
        self._call(
            "remove_pin", timeout, lambda: self.inner.remove_pin(keys, name, timeout=timeout)
        )

    def forget_record(self, keys: Keys, version: Version, *, timeout: float) -> None:
        """As the inner store's."""
        self._call(
            "forget_record",
            timeout,
            lambda: self.inner.forget_record(keys, version, timeout=timeout),
        )

    def set_expiry(
        self, keys: Keys, digests: Sequence[str], *, ttl_s: float | None, timeout: float
    ) -> set[str]:
        """As the inner store's."""
        return self._call(
            "set_expiry",
            timeout,
            lambda: self.inner.set_expiry(keys, digests, ttl_s=ttl_s, timeout=timeout),
        )

    def give_notice(
        self, keys: Keys, versions: Sequence[Version], *, ttl_s: float, timeout: float
    ) -> None:
        """As the inner store's."""
        self._call(
            "give_notice",
            timeout,
            lambda: self.inner.give_notice(keys, versions, ttl_s=ttl_s, timeout=timeout),
        )

    def notice(self, keys: Keys, *, timeout: float) -> set[Version]:
        """As the inner store's."""
        return self._call("notice", timeout, lambda: self.inner.notice(keys, timeout=timeout))

    def expires_in(self, keys: Keys, *, timeout: float) -> float | None:
        """As the inner store's."""
        return self._call(
            "expires_in", timeout, lambda: self.inner.expires_in(keys, timeout=timeout)
        )

    def drop(
        self, keys: Keys, versions: Sequence[Version], digests: Sequence[str], *, timeout: float
    ) -> None:
        """As the inner store's."""
        self._call(
            "drop", timeout, lambda: self.inner.drop(keys, versions, digests, timeout=timeout)
        )

    def note_reader(
        self, keys: Keys, reader: str, note: str, *, ttl_s: float, timeout: float
    ) -> None:
        """As the inner store's."""
        self._call(
            "note_reader",
            timeout,
            lambda: self.inner.note_reader(keys, reader, note, ttl_s=ttl_s, timeout=timeout),
        )

    def readers(self, keys: Keys, *, timeout: float) -> dict[str, str]:
        """As the inner store's."""
        return self._call("readers", timeout, lambda: self.inner.readers(keys, timeout=timeout))

    def forget_readers(self, keys: Keys, *, now_ms: int, ttl_s: float, timeout: float) -> None:
        """As the inner store's."""
        self._call(
            "forget_readers",
            timeout,
            lambda: self.inner.forget_readers(keys, now_ms=now_ms, ttl_s=ttl_s, timeout=timeout),
        )

    def close(self) -> None:
        """Closes the inner store."""
        self.inner.close()

    def _as_told(self, digest: str, blob: bytes | memoryview | None) -> bytes | memoryview | None:
        if blob is None or digest in self._missing:
            return None
        if digest in self._corrupt:
            damaged = bytearray(blob)
            damaged[len(blob) // 2] ^= 1
            return bytes(damaged)
        return blob
