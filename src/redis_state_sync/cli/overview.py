"""What is known of a namespace: who writes, what is there, who reads."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from redis_state_sync.errors import CodecError, UnknownVersionError
from redis_state_sync.history import History, StoredVersion
from redis_state_sync.manifest import Writer
from redis_state_sync.reader_notes import read_note
from redis_state_sync.version import Version

# Most samples take less: a reader that is behind, and fetched nothing for longer, is likely gone.
_SILENT_S = 300.0


class Standing(str, Enum):
    """How a reader is."""

    STALE = "stale"
    """It has what is not kept any more, or another learner's."""
    BEHIND = "behind"
    CURRENT = "current"
    SILENT = "silent"
    """Behind, and fetched nothing for long."""


@dataclass(frozen=True, slots=True)
class Reader:
    """Who fetched from the namespace.

    Args:
        name: As it calls itself.
        version: What it fetched last.
        lag: How many versions it is behind; None: it holds one of another learner.
        age_s: Seconds since it fetched, by its clock and the server's.
        standing: What that means.
    """

    name: str
    version: Version
    lag: int | None
    age_s: float
    standing: Standing


@dataclass(frozen=True, slots=True)
class Overview:
    """A namespace at one moment.

    Args:
        namespace: Its name.
        generation: The newest learner's; None if nothing is there but pins.
        claimed_by: Who took over, if nothing was published since.
        versions: The states, newest first.
        pins: Pin name -> version.
        readers: Those that left a note, the stalest first, and those that are silent last.
        now_ms: The server's clock, in ms since 1970.
        expires_in_s: Seconds until all but the pinned versions expire, unless a learner refreshes.
    """

    namespace: str
    generation: int | None
    claimed_by: Writer | None
    versions: list[StoredVersion]
    pins: dict[str, Version]
    readers: list[Reader]
    now_ms: int
    expires_in_s: float | None

    @property
    def newest(self) -> StoredVersion | None:
        """The newest state."""
        return self.versions[0] if self.versions else None

    def age_s(self, stored: StoredVersion) -> float | None:
        """Seconds since a version was published, by its writer's clock and the server's."""
        return None if stored.manifest is None else (self.now_ms - stored.manifest.time_ms) / 1000

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        newest = self.newest
        return {
            "namespace": self.namespace,
            "generation": self.generation,
            "claimed_by": asdict(self.claimed_by) if self.claimed_by else None,
            "newest": None if newest is None else version_as_json(self, newest),
            "versions": len(self.versions),
            "pins": {name: str(version) for name, version in sorted(self.pins.items())},
            "readers": [{**asdict(r), "version": str(r.version)} for r in self.readers],
            "expires_in_s": self.expires_in_s,
        }


def version_as_json(overview: Overview, stored: StoredVersion) -> dict[str, Any]:
    """One version, for programs."""
    manifest = stored.manifest
    known = manifest and {
        "writer": asdict(manifest.writer),
        "time_ms": manifest.time_ms,
        "age_s": overview.age_s(stored),
        "weights_seq_no": manifest.weights_seq_no,
        "size": manifest.size,
        "components": {name: component.size for name, component in manifest.components.items()},
    }
    return {
        "version": str(stored.version),
        "pins": list(stored.pins),
        "problem": stored.problem,
        **(known or {}),
    }


def look_at(history: History) -> Overview:
    """Reads all that `Overview` shows.

    Raises:
        UnknownVersionError: If the namespace holds nothing.
        StoreError: If the store fails.
    """
    store, keys, timeout = history.store, history.keys, history.timeout_s
    top = store.newest(keys, timeout=timeout)
    versions = history.versions()
    pins = history.pins()
    if not top and not versions and not pins:
        raise UnknownVersionError(
            f"namespace {keys.namespace!r} at {store.describe()} holds nothing: it expired, or "
            "nobody published there. 'redis-state-sync list' shows those that hold something"
        )
    claimed_by = None
    if top and top[0].version.is_claim:
        try:
            claimed_by = history.records.open(top[0]).writer
        except CodecError:
            pass  # Who it was can not be told; that somebody did, the generation shows.
    now_ms = store.time_ms(timeout=timeout)
    return Overview(
        keys.namespace,
        top[0].version.generation if top else None,
        claimed_by,
        versions,
        pins,
        _readers(store.readers(keys, timeout=timeout), versions, now_ms),
        now_ms,
        store.expires_in(keys, timeout=timeout),
    )


def _readers(notes: dict[str, str], versions: list[StoredVersion], now_ms: int) -> list[Reader]:
    newest = versions[0].version if versions else None
    kept = {stored.version for stored in versions if not stored.pins}
    readers = []
    for name, note in notes.items():
        found = read_note(note)
        if found is not None:
            version, time_ms = found
            same = newest is not None and version.generation == newest.generation
            lag = max(0, newest.number - version.number) if newest and same else None
            age_s = (now_ms - time_ms) / 1000
            standing = standing_of(lag, age_s, is_kept=version in kept)
            readers.append(Reader(name, version, lag, age_s, standing))
    return sorted(readers, key=_stalest_first)


def standing_of(lag: int | None, age_s: float, *, is_kept: bool) -> Standing:
    """How a reader is.

    Args:
        lag: How many versions it is behind; None: it holds one of another learner.
        age_s: Seconds since it fetched.
        is_kept: Whether what it holds is one of the newest versions, those that are there unpinned.
    """
    if lag == 0:
        return Standing.CURRENT
    if age_s > _SILENT_S:
        return Standing.SILENT
    return Standing.BEHIND if is_kept and lag is not None else Standing.STALE


def _stalest_first(reader: Reader) -> tuple[bool, float, float, str]:
    lag = float("inf") if reader.lag is None else reader.lag
    return reader.standing is Standing.SILENT, -lag, -reader.age_s, reader.name
