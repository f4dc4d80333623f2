"""What is fuzzed, and what must hold for any bytes. A violation is an exception."""

from __future__ import annotations

import random
import time
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import hiredis
import msgpack
import redis

from redis_state_sync import codec
from redis_state_sync.endpoint import parse_url
from redis_state_sync.errors import CodecError, SettingsError, StoreError, VersionError
from redis_state_sync.frames import Frames, ReplyTooLargeError
from redis_state_sync.keyring import Keyring
from redis_state_sync.keys import Keys
from redis_state_sync.manifest import BLAKE2B, MAX_MANIFEST_ITEMS, Manifest
from redis_state_sync.records import Records
from redis_state_sync.redis_store import RedisStore
from redis_state_sync.store import Entry
from redis_state_sync.untrusted import MAX_ITEMS, has_more_items, unpack
from redis_state_sync.version import Version
from tests.fuzz import fast, mutate, seeds
from tests.fuzz.fast import ViolationError
from tests.unit.bounds import most_memory, peak_memory

Mutator = Callable[[bytes, random.Random, mutate.Mutate], bytes]
# Few inputs are measured: it takes ten times as long.
MEASURED = 32


@dataclass(frozen=True)
class Target:
    """One thing to fuzz.

    Args:
        run: Is given the bytes.
        seeds: Where to begin.
        modules: The files whose lines it should reach.
        mutator: Changes an input.
        share: Of the time.
    """

    run: Callable[[bytes], None]
    seeds: Callable[[], list[bytes]]
    modules: tuple[str, ...]
    mutator: Mutator | None
    share: float


def _decoding(decode: Callable[[bytes], Any], most_items: int) -> Callable[[bytes], None]:
    def run(data: bytes) -> None:
        def call() -> None:
            try:
                decode(data)
            except CodecError as error:
                if len(str(error)) > 1000:
                    raise ViolationError("an error as long as its cause fills logs") from error

        if zlib.crc32(data) % MEASURED:
            call()
            return
        peak, most = peak_memory(call), most_memory(len(data), most_items)
        if peak > most:
            raise ViolationError(f"{len(data)} bytes took {peak} of memory; documented are {most}")

    return run


def version(data: bytes) -> None:
    """What is read is written the same way, but for leading zeros."""
    for text in (data, data.decode("utf-8", "replace")):
        try:
            read = Version.parse(text)
        except VersionError:
            continue
        if Version.parse(str(read)) != read:
            raise ViolationError(f"{text!r} is {read}")


SECRET = "hunter2-is-the-secret"


def url(data: bytes) -> None:
    """Only SettingsErrors, and no message or text shows what stands where passwords do."""
    text = data.decode("utf-8", "surrogateescape")
    scheme, _, rest = text.partition("://")
    before, _, behind = rest.partition("@")
    hidden = f"{scheme}://me:{before}{SECRET}@{behind}"
    path_like = scheme.lower() in ("unix", "memory") and set(before) & set("/?#\\")
    for given in (text, hidden):
        try:
            endpoint = parse_url(given)
            shown = f"{endpoint!r} {endpoint.describe()}"
        except SettingsError as error:
            shown = f"{error!r} {error}"
        if SECRET in shown and not path_like:
            raise ViolationError(shown)


class _Served:
    """A socket that has some bytes to offer, then ends or falls silent."""

    def __init__(self, data: bytes, piece: int, silent: bool) -> None:
        self._data, self._piece, self._silent = data, piece, silent

    def recv_into(self, buffer: Any) -> int:
        count = min(len(self._data), len(buffer), self._piece)
        if not count and self._silent:
            raise TimeoutError
        buffer[:count] = self._data[:count]
        self._data = self._data[count:]
        return count

    def recv(self, size: int) -> bytes:
        buffer = bytearray(size)
        return bytes(buffer[: self.recv_into(buffer)])

    def settimeout(self, seconds: float) -> None:
        if seconds <= 0:
            raise ViolationError("a socket that never waits")

    def sendall(self, data: Any) -> None: ...

    def shutdown(self, how: int) -> None: ...

    def close(self) -> None: ...


class _Connection(redis.Connection):
    def __init__(self, *, served: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._served = served

    def _connect(self) -> Any:
        return _Served(*self._served)


def _no_connection(*args: Any) -> NoReturn:
    raise ViolationError("nothing else may be connected to")


KEYS = Keys("n")
# Seconds for each call: enough for all that does not wait.
SOON = 0.05
CALLS: list[Callable[[RedisStore], Any]] = [
    lambda s: s.newest(KEYS, count=16, timeout=SOON),
    lambda s: s.get_blobs(KEYS, ["0" * 32, "1" * 32], timeout=SOON, limit=1000),
    lambda s: s.time_ms(timeout=SOON),
    lambda s: s.server_facts(timeout=SOON),
    lambda s: s.pins(KEYS, timeout=SOON),
    lambda s: s.append(KEYS, Version(1, 1), b"m", ttl_s=10, timeout=SOON),
    lambda s: s.refresh(KEYS, ["0" * 32], ttl_s=10, timeout=SOON),
    lambda s: s.note_reader(KEYS, "me", "1-1", ttl_s=10, timeout=SOON),
    lambda s: s.put_blobs(KEYS, {"0" * 32: b"x"}, ttl_s=10, timeout=SOON),
    lambda s: s.drop(KEYS, [Version(1, 1)], ["0" * 32], timeout=SOON),
    lambda s: s.ask_for_blob(KEYS, "0" * 32, ttl_s=10, timeout=SOON),
    lambda s: s.forget_readers(KEYS, now_ms=10**12, ttl_s=10, timeout=SOON),
]
NODES = (("one.example", 1), ("two.example", 2))


def replies(data: bytes) -> None:
    """Whatever a server or the nodes of a cluster send, a call gives a value or a StoreError."""
    if len(data) < 4:
        return
    call, protocol, piece, silent = CALLS[data[0] % len(CALLS)], data[1] % 4, data[2], data[3] % 2

    def pool(node: tuple[str, int] = ("here", 1)) -> redis.ConnectionPool:
        return redis.ConnectionPool(
            connection_class=_Connection,
            served=(data[4:], piece or 1 << 16, bool(silent)),
            host=node[0],
            port=node[1],
            protocol=3 if protocol == 3 else 2,
            db=1 if protocol == 1 else 0,
            password="x" if protocol == 2 else None,
            socket_timeout=SOON,
            socket_connect_timeout=SOON,
            retry=None,
            health_check_interval=0,
        )

    store = RedisStore(pool, "redis://here", cluster=NODES if data[3] & 2 else ())
    started = time.monotonic()
    try:
        call(store)
    except StoreError:
        pass
    store.close()
    if time.monotonic() - started > 8:  # The machine is shared.
        raise ViolationError(f"{len(data)} bytes took {time.monotonic() - started:.1f} s")


VERSION = Version(1_700_000_000_000, 1)
KEYRING = Keyring(lambda: "0123456789abcdef" * 2)
SIGNED = Records(KEYS, KEYRING)
UNSIGNED = Records(KEYS, None)
OURS = [SIGNED.seal(VERSION, replace(Manifest.decode(m), algorithm=BLAKE2B)) for m in
        seeds.manifests()]  # fmt: skip


def records(data: bytes) -> None:
    """Without a key a record or a CodecError; with a key only what was signed with it."""
    try:
        UNSIGNED.open(Entry(VERSION, data))
    except CodecError:
        pass
    try:
        SIGNED.open(Entry(VERSION, data))
    except CodecError:
        return
    if not any(same_record(data, ours) for ours in OURS):
        raise ViolationError("a record that was never signed")


def same_record(a: bytes, b: bytes) -> bool:
    """Whether two envelopes hold the same, however long their headers are written."""
    return bool(msgpack.unpackb(a) == msgpack.unpackb(b))


class _Pairs(list[Any]):
    """A dict, with what occurs twice."""


def items(data: bytes) -> None:
    """Items are counted as unpacking them finds them."""
    try:
        unpack(data, "value")
    except CodecError:
        return
    count = _count(msgpack.unpackb(data, object_pairs_hook=_Pairs, unicode_errors="replace"))
    if has_more_items(data, count) or (count > 1 and not has_more_items(data, count - 1)):
        raise ViolationError(f"there are {count} items")


def _count(value: Any) -> int:
    count, waiting = 0, [value]  # Deeper than Python goes.
    while waiting:
        inner = waiting.pop()
        count += 1
        if isinstance(inner, _Pairs):
            count += len(inner)
            waiting += [item for _, item in inner]
        elif isinstance(inner, list):
            waiting += inner
    return count


_NOTHING = object()


def frames(data: bytes) -> None:
    """No more elements and no longer values get past than allowed, however bytes are cut."""
    if not data:
        return
    piece, most = data[0] or 1, 60
    verdicts = []
    for step in (piece, len(data)):
        reader, guard = (
            hiredis.Reader(notEnoughData=_NOTHING),
            Frames(most + len(data), max_elements=7),
        )
        try:
            for start in range(1, len(data), step):
                guard.saw(memoryview(data)[start : start + step])
                reader.feed(data[start : start + step])
                while (reply := reader.gets()) is not _NOTHING:
                    _check_reply(reply)
        except (ReplyTooLargeError, hiredis.HiredisError, ValueError, TypeError) as error:
            verdicts.append(type(error))
        else:
            verdicts.append(None)
    if ReplyTooLargeError in verdicts and None in verdicts:
        raise ViolationError(f"cut differently, judged differently: {verdicts}")


def _check_reply(reply: Any) -> None:
    if isinstance(reply, (list, dict, tuple, set)):
        if len(reply) > 7:
            raise ViolationError(f"{len(reply)} elements got past")
        for inner in reply:
            _check_reply(inner)


def _with_flags() -> list[bytes]:
    return [
        bytes([call, protocol, piece, cluster]) + text
        for call in range(len(CALLS))
        for protocol, piece, cluster in ((0, 0, 0), (3, 1, 0), (0, 0, 2))
        for text in seeds.replies()
    ]


TRACKED: list[Callable[[RedisStore], Any]] = [
    lambda s: s.newest(KEYS, count=16, timeout=SOON, tracked=True),
    lambda s: s.get_blobs(KEYS, ["0", "1"], timeout=SOON, into=[memoryview(bytearray(3))] * 2),
]
ITEMS = [b"\x93\xc0\xa1x\xd1\0\x01", b"\xdc\0\x01\xc5\0\x01x", b"\xc7\0\x05"]


class _Registered:
    """A type of a user's, whose reader checks what it gets."""


def _from_tree(value: Any) -> _Registered:
    if value != 1:
        raise ValueError("not mine")
    return _Registered()


codec.register_type(_Registered, "fuzzed", lambda value: 1, _from_tree)
warnings.simplefilter("ignore")  # numpy's, about names that old versions can not read

CODEC = ("codec", "tree_reader", "dtypes", "untrusted", "packed_npy")
TARGETS = {
    "codec": Target(
        _decoding(codec.decode, MAX_ITEMS), seeds.blobs, CODEC, mutate.blob, 0.35
    ),
    "weights": Target(
        _decoding(lambda data: codec.decode(data, guard_packed=False), MAX_ITEMS),
        seeds.blobs, CODEC, mutate.blob, 0.15,
    ),
    "manifest": Target(
        _decoding(Manifest.decode, MAX_MANIFEST_ITEMS),
        seeds.manifests, ("manifest", "untrusted", "components"), mutate.manifest, 0.2,
    ),
    "replies": Target(
        replies, _with_flags, ("redis_store", "exchange", "frames", "guarded", "redis_errors"),
        mutate.replies, 0.2,
    ),
    "records": Target(
        records,
        lambda: [*OURS, *seeds.manifests()],
        ("records", "keyring"),
        mutate.manifest,
        0.05,
    ),
    "reader": Target(
        fast.reader, _with_flags, ("resp_reader",), mutate.replies, 0.1
    ),
    "fast": Target(
        fast.calls([*CALLS, *TRACKED, *TRACKED]), _with_flags,
        ("redis_store", "exchange", "line", "tracking", "resp_reader"), mutate.replies, 0.15,
    ),
    "frames": Target(
        frames, lambda: [b"\0" + text for text in seeds.replies()], ("frames",), mutate.replies,
        0.05,
    ),
    "items": Target(
        items, lambda: [*seeds.manifests(), *ITEMS], ("untrusted",), mutate.manifest, 0.05
    ),
    "url": Target(url, seeds.urls, ("endpoint",), None, 0.07),
    "version": Target(version, seeds.versions, ("version",), None, 0.03),
}  # fmt: skip
