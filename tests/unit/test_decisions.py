"""Decisions are pure functions of plain data."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from redis_state_sync.decisions import (
    FIRST_DELAY_S,
    LONGEST_DELAY_S,
    Cooldown,
    choose,
    next_generation,
)
from redis_state_sync.manifest import Manifest, Writer
from redis_state_sync.store import Entry
from redis_state_sync.version import Version


def entry(generation: int, number: int, writer: str = "me") -> Entry:
    manifest = Manifest(Writer(writer, "host", 1), 0)
    return Entry(Version(generation, number), manifest.encode())


def broken(generation: int, number: int) -> Entry:
    return Entry(Version(generation, number), b"\xc1 not msgpack")


def opened(found: Entry) -> Manifest:
    return Manifest.decode(found.manifest)


def test_takes_the_newest() -> None:
    """Of several newer versions only the newest is fetched: C1."""
    choice = choose([entry(1, 4), entry(1, 3), entry(1, 2)], Version(1, 1), None, opened)
    assert (choice.version, choice.floor) == (Version(1, 4), Version(1, 4))


def test_nothing_new_is_nothing() -> None:
    """No entries means no choice, and what was looked at stays looked at: C17."""
    assert choose([], None, None, opened).version is None
    assert choose([], Version(3, 3), None, opened).floor == Version(3, 3)


def test_looks_past_claims() -> None:
    """A take-over record on top hides no state, and is not looked at again."""
    choice = choose([entry(2, 0), entry(1, 7)], Version(1, 6), None, opened)
    assert (choice.version, choice.floor) == (Version(1, 7), Version(2, 0))


def test_passes_over_foreign_writers() -> None:
    """An EnvRunner never takes the state of a learner that is not its own, and says so: C34."""
    choice = choose([entry(2, 1, "other"), entry(1, 7)], None, "me", opened)
    assert (choice.version, choice.foreign) == (Version(1, 7), True)
    only_foreign = choose([entry(2, 1, "other")], None, "me", opened)
    assert (only_foreign.version, only_foreign.foreign) == (None, True)
    assert only_foreign.floor == Version(2, 1)
    assert choose([entry(2, 1, "other")], None, None, opened).version == Version(2, 1)


def test_passes_over_unreadable_manifests() -> None:
    """A manifest that can not be read is skipped and named; the next older one is taken: C48."""
    choice = choose([broken(1, 9), entry(1, 8)], None, None, opened)
    assert choice.version == Version(1, 8)
    assert str(choice.broken).startswith("skipped version 1-9: ")


entries = st.lists(
    st.builds(
        lambda g, n, kind: broken(g, n) if kind == "broken" else entry(g, n, kind),
        st.integers(0, 3),
        st.integers(0, 5),
        st.sampled_from(["me", "other", "broken"]),
    ),
    max_size=8,
)
floors = st.none() | st.builds(Version, st.integers(0, 3), st.integers(0, 5))


@given(entries, floors, st.sampled_from([None, "me"]))
def test_never_goes_back(found: list[Entry], floor: Version | None, writer: str | None) -> None:
    """Whatever a store answers, the choice is newer than the floor, which never sinks: C10."""
    choice = choose(found, floor, writer, opened)
    if floor is not None:
        assert choice.floor is not None
        assert choice.floor >= floor
    if choice.version is not None:
        assert choice.floor is not None
        assert not choice.version.is_claim
        assert floor is None or choice.version > floor
        assert choice.floor >= choice.version


def test_cooldown_doubles_up_to_a_cap() -> None:
    """A failing store is left alone for a growing while, never longer than the cap: C4."""
    cooldown, now, delays = Cooldown(), 100.0, []
    assert cooldown.ready(now)
    for _ in range(12):
        cooldown = cooldown.failed(now, jitter=1.0)
        delays.append(cooldown.until - now)
        assert not cooldown.ready(now)
        assert cooldown.ready(cooldown.until)
    assert delays[:3] == [FIRST_DELAY_S, 2 * FIRST_DELAY_S, 4 * FIRST_DELAY_S] or all(
        abs(d - FIRST_DELAY_S * 2**i) < 1e-9 for i, d in enumerate(delays[:3])
    )
    assert abs(max(delays) - LONGEST_DELAY_S) < 1e-9
    assert cooldown.failures == 12


@given(st.integers(0, 10_000), st.floats(0, 1, exclude_max=True))
def test_cooldown_is_bounded(failures: int, jitter: float) -> None:
    """Any number of failures and any jitter keep a delay within half of the cap and the cap."""
    delay = Cooldown(failures).failed(0.0, jitter).until
    assert FIRST_DELAY_S / 2 <= delay <= LONGEST_DELAY_S


def test_jitter_spreads() -> None:
    """Readers with different jitter do not come back at the same time."""
    assert Cooldown(5).failed(0.0, 0.1).until != Cooldown(5).failed(0.0, 0.9).until


@given(st.none() | st.builds(Version, st.integers(0, 2**60), st.integers(0, 9)),
       st.integers(0, 2**60))  # fmt: skip
def test_generations_grow(newest: Version | None, server_ms: int) -> None:
    """A take-over is newer than all that is stored, also when the clock stands still: C11."""
    generation = next_generation(newest, server_ms)
    assert generation >= server_ms
    assert newest is None or Version(generation, 0) > newest


def test_generations_grow_after_the_store_lost_everything() -> None:
    """With an empty store the clock alone makes a generation newer than an earlier one: C11."""
    before = next_generation(None, 1_000_000)
    assert next_generation(None, 1_000_001) > before
