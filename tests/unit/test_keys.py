"""Key names: one hash slot a namespace, and no way out of it."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_state_sync import SettingsError
from redis_state_sync.keys import MAX_NAMESPACE_LENGTH, Keys, as_namespace, check_namespace


@pytest.mark.parametrize("name", ["a", "Z9", "exp/trial_00001:x@y=+,-.", "a" * 200])
def test_all_keys_share_one_hash_tag(name: str) -> None:
    """Every key of a namespace holds it in braces, so a cluster keeps them in one slot: C79."""
    keys = Keys(name)
    for key in (keys.versions, keys.pins, keys.readers, keys.blob("d" * 32)):
        assert re.findall(r"\{(.*?)\}", key) == [name]
        assert key.startswith("rss:{")


@pytest.mark.parametrize(
    "name", ["", " ", "a b", "a{b", "a}b", "a*", "a?b", "a[b]", "a\n", ".a", "-a", "ä", "a" * 201,
             None, 7, b"a"],
)  # fmt: skip
def test_refuses_names_that_could_match_others(name: object) -> None:
    """Braces, glob characters, white space and the like are refused with the allowed ones named."""
    with pytest.raises(SettingsError, match="letters, digits"):
        check_namespace(name)
    with pytest.raises(SettingsError):
        Keys(name)  # type: ignore[arg-type]


@given(st.text(max_size=300))
def test_any_text_becomes_a_valid_namespace(text: str) -> None:
    """`as_namespace` always gives a valid name, the same one each time."""
    name = as_namespace(text)
    assert check_namespace(name) == name
    assert as_namespace(text) == name
    assert as_namespace(name) == name


def test_the_end_of_a_long_name_stays() -> None:
    """The part that tells trials apart is at the end, so that is what is kept: C98."""
    a, b = (as_namespace("x" * 300 + f"/trial_{i:05d}") for i in range(2))
    assert a != b
    assert "trial_00000-" in a
    assert len(a) == MAX_NAMESPACE_LENGTH


@given(st.text(max_size=300), st.text(max_size=300))
def test_different_texts_never_meet(a: str, b: str) -> None:
    """Two names that are not the same do not become the same namespace."""
    assert (as_namespace(a) == as_namespace(b)) == (a == b)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("exp a/trial", "exp_a/trial"),
        ("exp a/trial", "exp\ta/trial"),
        ("ä", "ö"),
        (".a", "a"),
        ("", "unnamed"),
        ("x" * 201, "x" * 202),
        ("A b", "a b"),
    ],
)
def test_names_that_look_alike_do_not_meet(a: str, b: str) -> None:
    """What is replaced, cut off or left out still tells names apart; valid ones stay."""
    assert as_namespace(a) != as_namespace(b)
    assert as_namespace("exp/trial_1") == "exp/trial_1"


def test_different_digests_have_different_keys() -> None:
    """A blob's key is its digest's."""
    assert Keys("n").blob("a") != Keys("n").blob("b")
    assert Keys("n").blob("a") != Keys("m").blob("a")
