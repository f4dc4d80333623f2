"""Pins on Redis or Valkey: the part of the store that deals with old versions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from redis_state_sync.errors import StoreReplyError
from redis_state_sync.exchange import Command
from redis_state_sync.keys import Keys
from redis_state_sync.replies import entries
from redis_state_sync.version import Version

# Commands that are sent in one go.
_BATCH = 64


class RedisPins(ABC):
    """What `RedisStore` does for pins, by what it does for all commands."""

    @abstractmethod
    def _run(self, operation: str, commands: Sequence[Command], timeout: float) -> list[Any]: ...

    @abstractmethod
    def _read(self, command: str, read: Callable[[Any], Any], reply: Any) -> Any: ...

    @abstractmethod
    def _hash(self, operation: str, key: str, timeout: float) -> dict[bytes, bytes]: ...

    @abstractmethod
    def _unexpected(self, command: str) -> StoreReplyError: ...

    def pins(self, keys: Keys, *, timeout: float) -> dict[str, Version]:
        """Pin name -> pinned version."""
        found = self._hash("pins", keys.pins, timeout)
        try:
            return {name.decode(): Version.parse(version) for name, version in found.items()}
        except (TypeError, ValueError) as error:
            raise self._unexpected("HGETALL") from error

    def find(
        self, keys: Keys, versions: Sequence[Version], *, timeout: float
    ) -> dict[Version, bytes]:
        """The records of these versions, announced or pinned, as far as they are there."""
        found = {}
        for start in range(0, len(versions), _BATCH):
            batch = versions[start : start + _BATCH]
            commands: list[Command] = [("HGET", keys.pinned, str(v)) for v in batch]
            commands += [("XREVRANGE", keys.versions, str(v), str(v)) for v in batch]
            replies = self._run("find", commands, timeout)
            for version, pinned, reply in zip(
                batch, replies[: len(batch)], replies[len(batch) :], strict=True
            ):
                if pinned is not None:
                    if not isinstance(pinned, bytes):
                        raise self._unexpected("HGET")
                    found[version] = pinned
                for entry in self._read("XREVRANGE", entries, reply):
                    found[version] = entry.manifest
        return found

    def set_pin(self, keys: Keys, name: str, version: Version, *, timeout: float) -> None:
        """Names a version."""
        self._run("pin", [("HSET", keys.pins, name, str(version))], timeout)

    def remove_pin(self, keys: Keys, name: str, *, timeout: float) -> None:
        """Forgets a name."""
        self._run("unpin", [("HDEL", keys.pins, name)], timeout)

    def keep_record(self, keys: Keys, version: Version, record: bytes, *, timeout: float) -> None:
        """Keeps the record of a pinned version."""
        self._run("pin", [("HSET", keys.pinned, str(version), record)], timeout)

    def forget_record(self, keys: Keys, version: Version, *, timeout: float) -> None:
        """Forgets what `keep_record` kept."""
        self._run("unpin", [("HDEL", keys.pinned, str(version))], timeout)

    def set_expiry(
        self, keys: Keys, digests: Sequence[str], *, ttl_s: float | None, timeout: float
    ) -> set[str]:
        """Has blobs expire after this time, or (None) never; returns the missing ones."""
        missing = set()
        for start in range(0, len(digests), _BATCH):
            batch = digests[start : start + _BATCH]
            commands: list[Command] = []
            for key in map(keys.blob, batch):
                change = ("PERSIST", key) if ttl_s is None else ("EXPIRE", key, whole(ttl_s))
                # PERSIST says the same of a key that is missing and of one that never expires.
                commands += [change, ("EXISTS", key)]
            there = self._run("expiry", commands, timeout)[1::2]
            missing |= {digest for digest, n in zip(batch, there, strict=True) if not n}
        return missing

    def give_notice(
        self, keys: Keys, versions: Sequence[Version], *, ttl_s: float, timeout: float
    ) -> None:
        """Says which versions are about to be dropped."""
        command: Command = ("UNLINK", keys.dropping)
        if versions:
            command = ("SET", keys.dropping, " ".join(map(str, versions)), "EX", whole(ttl_s))
        self._run("notice", [command], timeout)

    def notice(self, keys: Keys, *, timeout: float) -> set[Version]:
        """The versions that are about to be dropped."""
        (reply,) = self._run("notice", [("GET", keys.dropping)], timeout)
        return set(self._read("GET", _versions, reply)) if reply is not None else set()

    def expires_in(self, keys: Keys, *, timeout: float) -> float | None:
        """Seconds until the versions expire."""
        (reply,) = self._run("expiry", [("PTTL", keys.versions)], timeout)
        if not isinstance(reply, int):
            raise self._unexpected("PTTL")
        return None if reply < 0 else reply / 1000


def _versions(reply: Any) -> list[Version]:
    if not isinstance(reply, bytes):
        raise TypeError("no text")
    return [Version.parse(part) for part in reply.split()]


def whole(seconds: float) -> int:
    """Seconds as the servers take them: a whole number of at least one."""
    return max(1, round(seconds))
