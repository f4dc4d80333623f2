"""Where the model's states are: a store, and everything that can befall its data."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import fakeredis

from redis_state_sync import open_store
from redis_state_sync.embedded import EmbeddedServer, find_server
from redis_state_sync.errors import SettingsError
from redis_state_sync.keys import Keys
from redis_state_sync.memory_store import MemoryStore
from redis_state_sync.redis_store import RedisStore
from redis_state_sync.store import Store
from redis_state_sync.testing import skip_or_fail
from redis_state_sync.version import Version

WAIT = 20.0
TTL_S = 3600.0
NOTHING = Version(0, 0)


class Place(Protocol):
    """One namespace at a time on one store."""

    raw: Store
    keys: Keys

    def save(self) -> Any: ...

    def load(self, saved: Any) -> None: ...

    def wipe(self) -> None: ...

    def lose_blob(self, digest: str) -> None: ...

    def top(self) -> Version: ...

    def expiries(self) -> dict[str, float]: ...

    def advance(self, seconds: float) -> None: ...


class MemoryPlace:
    """The store in memory, with a clock that the model moves."""

    def __init__(self) -> None:
        self.now = 1_000_000.0
        self.raw = MemoryStore("model", clock=lambda: self.now)
        self.keys = Keys("model")

    def save(self) -> Any:
        return copy.deepcopy((self.raw._values, self.raw._expiry))

    def load(self, saved: Any) -> None:
        self.raw._values, self.raw._expiry = copy.deepcopy(saved)

    def wipe(self) -> None:
        self.load(({}, {}))

    def lose_blob(self, digest: str) -> None:
        self.raw._values.pop(self.keys.blob(digest), None)

    def top(self) -> Version:
        return max(self.raw._get(self.keys.versions) or {}, default=NOTHING)

    def expiries(self) -> dict[str, float]:
        return {key: self.raw._expiry.get(key, -1.0) for key in self.raw._values}

    def advance(self, seconds: float) -> None:
        self.now += seconds


class RedisPlace:
    """fakeredis or a real server. Its clock can not be moved: there the data only get lost."""

    def __init__(self, store: RedisStore, namespace: str) -> None:
        self.raw = store
        self.keys = Keys(namespace)

    def _run(self, *commands: tuple[object, ...]) -> list[Any]:
        return self.raw._run("test", commands, WAIT)

    def _names(self) -> list[bytes]:
        (names,) = self._run(("KEYS", f"rss:{{{self.keys.namespace}}}:*"))
        return sorted(names)

    def save(self) -> Any:
        names = self._names()
        return dict(zip(names, self._run(*(("DUMP", n) for n in names)), strict=True))

    def load(self, saved: Any) -> None:
        self.wipe()
        ttl_ms = int(TTL_S * 1000)
        if saved:
            self._run(*(("RESTORE", name, ttl_ms, data) for name, data in saved.items()))

    def wipe(self) -> None:
        names = self._names()
        if names:
            self._run(("DEL", *names))

    def lose_blob(self, digest: str) -> None:
        self._run(("DEL", self.keys.blob(digest)))

    def top(self) -> Version:
        (exists,) = self._run(("EXISTS", self.keys.versions))
        if not exists:
            return NOTHING
        (facts,) = self._run(("XINFO", "STREAM", self.keys.versions))
        return Version.parse(facts[facts.index(b"last-generated-id") + 1])

    def expiries(self) -> dict[str, float]:
        names = self._names()
        replies = self._run(*(("PTTL", n) for n in names)) if names else []
        return {n.decode(): float(reply) for n, reply in zip(names, replies, strict=True)}

    def advance(self, seconds: float) -> None:
        pass


@contextmanager
def places(kind: str) -> Iterator[Any]:
    """A function that makes a place with nothing in it, each time a new one."""
    with ExitStack() as stack:
        if kind == "memory":
            yield MemoryPlace
            return
        if kind == "fakeredis":
            client = fakeredis.FakeRedis(server=fakeredis.FakeServer())
            store = RedisStore.from_client(client, "fakeredis")
        else:
            try:
                find_server()
            except SettingsError as error:
                skip_or_fail(str(error))
            opened = open_store(stack.enter_context(EmbeddedServer()).url)
            assert isinstance(opened, RedisStore)
            store = opened
        stack.callback(store.close)
        count = 0

        def make() -> RedisPlace:
            nonlocal count
            count += 1
            return RedisPlace(store, f"model/{count}")

        yield make
