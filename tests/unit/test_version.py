"""Versions are ordered pairs with one written form."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_state_sync import Version
from redis_state_sync.errors import VersionError

u64 = st.integers(0, 2**64 - 1)
versions = st.builds(Version, u64, u64)


@given(versions)
def test_round_trip(version: Version) -> None:
    """The written form is read back to the same version, as str and as bytes."""
    assert Version.parse(str(version)) == version
    assert Version.parse(str(version).encode()) == version
    assert pickle.loads(pickle.dumps(version)) == version


@given(versions, versions)
def test_order_is_generation_first(a: Version, b: Version) -> None:
    """Versions compare as their (generation, number) pairs do: C10, C11."""
    assert (a < b) == ((a.generation, a.number) < (b.generation, b.number))
    assert (a == b) == ((a.generation, a.number) == (b.generation, b.number))


def test_new_generation_beats_any_number() -> None:
    """A restarted learner's first version is newer than all of the one before: C10, C11."""
    assert Version(2, 1) > Version(1, 2**64 - 1)


@given(versions)
def test_the_next_id_is_the_smallest_greater_one(version: Version) -> None:
    """Nothing fits between a version and its next id; the greatest has none."""
    text = version.next_id()
    if text is None:
        assert version == Version(2**64 - 1, 2**64 - 1)
        return
    following = Version.parse(text)
    assert version < following
    assert following in (
        Version(version.generation, min(version.number + 1, 2**64 - 1)),
        Version(min(version.generation + 1, 2**64 - 1), 0),
    )
    assert following.number == 0 or following.number == version.number + 1


def test_claim() -> None:
    """Number 0 is a take-over record, and every other number a state."""
    assert Version(5, 0).is_claim
    assert not Version(5, 1).is_claim


@pytest.mark.parametrize("bad", [-1, 2**64, True, 1.0, "1", None])
def test_refuses_what_is_no_u64(bad: object) -> None:
    """Neither part may be anything but an int in [0, 2**64): C7."""
    with pytest.raises(VersionError):
        Version(bad, 1)  # type: ignore[arg-type]
    with pytest.raises(VersionError):
        Version(1, bad)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    ["", "-", "1", "1-", "-1", "1-2-3", "a-1", "+1-1", " 1-1", "1-1\n", "1_0-1", "٣-1",
     f"{2**64}-0", "9" * 5000 + "-1", b"\xff-1"],
)  # fmt: skip
def test_parse_refuses_anything_else(text: str) -> None:
    """Text that is not two decimal u64 joined by a dash is a VersionError, never another one."""
    with pytest.raises(VersionError):
        Version.parse(text)


@given(st.text() | st.binary())
def test_parse_never_raises_anything_else(text: str | bytes) -> None:
    """Parsing bytes of unknown origin gives a version or a VersionError."""
    try:
        version = Version.parse(text)
    except VersionError:
        return
    assert Version.parse(str(version)) == version
