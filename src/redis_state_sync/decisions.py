"""Decisions as pure functions of plain data: no store, no clock, no randomness of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from redis_state_sync.errors import CodecError
from redis_state_sync.manifest import Manifest
from redis_state_sync.store import Entry
from redis_state_sync.version import Version

FIRST_DELAY_S = 0.1
# Short enough that a store that came back is noticed within two seconds.
LONGEST_DELAY_S = 1.5


@dataclass(frozen=True, slots=True)
class Cooldown:
    """How long to leave a failing store alone: doubling, capped, with jitter.

    Args:
        failures: Consecutive ones.
        until: A `time.monotonic()` time before which nothing is tried.
    """

    failures: int = 0
    until: float = 0.0

    def ready(self, now: float) -> bool:
        """Whether the store may be asked."""
        return now >= self.until

    def failed(self, now: float, jitter: float) -> Cooldown:
        """The state after one more failure.

        Args:
            now: `time.monotonic()`.
            jitter: A random number in [0, 1): many readers should not come back at once.
        """
        delay = min(LONGEST_DELAY_S, FIRST_DELAY_S * 2 ** min(self.failures, 10))
        return Cooldown(self.failures + 1, now + delay * (0.5 + 0.5 * jitter))


@dataclass(frozen=True, slots=True)
class Choice:
    """What a poll's answer means.

    Args:
        version: The version to fetch, or None.
        manifest: Its manifest.
        floor: Nothing up to here needs to be looked at again.
        foreign: Whether a newer version of another writer was passed over.
        broken: Why a newer entry was passed over as unreadable, or None.
        behind: Whether the store lost what the reader had taken already.
    """

    version: Version | None
    manifest: Manifest | None
    floor: Version | None
    foreign: bool = False
    broken: CodecError | None = None
    behind: bool = False


def choose(
    entries: Sequence[Entry],
    floor: Version | None,
    writer: str | None,
    read: Callable[[Entry], Manifest],
) -> Choice:
    """Picks the newest state that a reader may take.

    Args:
        entries: What the store says is newer than `floor`, newest first.
        floor: The newest version that the reader holds or has looked at.
        writer: Take states of this writer id only; None: of any.
        read: Returns an entry's manifest; raises `CodecError`.
    """
    if not entries:  # So end nearly all polls.
        return Choice(None, None, floor)
    foreign, broken = False, None
    top = max([e.version for e in entries] + ([] if floor is None else [floor]), default=None)
    for entry in sorted(entries, key=lambda e: e.version, reverse=True):
        if entry.version.is_claim or (floor is not None and entry.version <= floor):
            continue
        try:
            manifest = read(entry)
        except CodecError as error:
            broken = broken or type(error)(f"skipped version {entry.version}: {error}")
            continue
        if writer is not None and manifest.writer.id != writer:
            foreign = True
            continue
        return Choice(entry.version, manifest, top, foreign, broken)
    return Choice(None, None, top, foreign, broken)


def next_generation(newest: Version | None, server_ms: int) -> int:
    """The generation of a learner that takes over: grows even after the store lost everything."""
    return max((newest.generation if newest else 0) + 1, server_ms)
