"""`diff`: what changed between two versions, and by how much."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from redis_state_sync.cli.comparing import Change, compare
from tests.cli.conftest import WAIT, Cli, fetched, learner, read

LARGE = 300_000  # Floats: more than what lies in shared memory, where there is any.


def test_diff(cli: Cli, url: str) -> None:
    """Components are the same, changed, added or removed; norms are those of numpy."""
    rng = np.random.default_rng(0)
    old, new = rng.normal(size=LARGE).astype("f4"), rng.normal(size=LARGE).astype("f4")
    frozen = {"w": rng.normal(size=LARGE)}
    with learner(url) as publisher:
        first = publisher.publish(
            {"rl_module/p": {"w": old, "b": old[:3]}, "rl_module/frozen": frozen,
             "rl_module/gone": frozen, "counters": {"steps": 1, "ab": [1, 2]}},
            weights_seq_no=1,
        ).wait(WAIT)  # fmt: skip
        second = publisher.publish(
            {"rl_module/p": {"w": new, "b": old[:3]}, "rl_module/new": {"w": old[:9]},
             "counters": {"steps": 2, "ab": [1, 3]}},
            weights_seq_no=2, remove=["rl_module/gone"],
        ).wait(WAIT)  # fmt: skip
        cli("pin", "team/run", "old", first)
        found = read(cli("diff", "team/run", "old", "--json"))
        detailed = read(cli("diff", "team/run", first, second, "--json", "--arrays"))
        shown = cli("diff", "team/run", first, "--arrays").stdout
        readers = read(cli("status", "team/run", "--json"))["readers"]
    assert (found["before"], found["after"]) == (str(first), str(second))
    components = found["components"]
    assert {name: each["change"] for name, each in components.items()} == {
        "rl_module/p": "changed", "rl_module/frozen": "same", "rl_module/gone": "removed",
        "rl_module/new": "added", "counters": "changed",
    }  # fmt: skip
    change = components["rl_module/p"]
    a, b = old.astype("f8"), new.astype("f8")
    assert change["norm"] == pytest.approx(np.hypot(np.linalg.norm(a), np.linalg.norm(a[:3])))
    assert change["norm_of_change"] == pytest.approx(np.linalg.norm(b - a))
    assert change["relative"] == pytest.approx(change["norm_of_change"] / change["norm"])
    assert change["largest"] == pytest.approx(np.abs(b - a).max())
    assert (change["arrays"], change["others"]) == (1, [])
    assert components["counters"]["others"] == ["steps", "ab/1"]
    each = detailed["components"]["rl_module/p"]["each"]
    assert each.keys() == {"w"}
    assert each["w"]["norm"] == pytest.approx(np.linalg.norm(a))
    for text in ("weights_seq_no 1 -> 2", "  w", "removed", "added", "steps, ab/1"):
        assert text in shown
    assert readers == []


def test_nothing_changed(cli: Cli, url: str) -> None:
    """The same state under two versions has no changes; so has a version and itself."""
    with learner(url) as publisher:
        first = publisher.publish({"c": {"w": np.ones(3)}}).wait(WAIT)
        publisher.publish({"c": {"w": np.ones(3)}}).wait(WAIT)
    fetched(url)
    for words in ((first,), (first, first)):
        found = read(cli("diff", "team/run", *words, "--json"))
        assert found["components"] == {"c": {"change": "same"}}
    assert "no version 5-5" in cli("diff", "team/run", "5-5", code=4).stderr


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"a": np.zeros(3)}, {"a": np.zeros(3)}, {"a": Change()}),
        ({"a": np.zeros(2)}, {"a": np.ones(2)}, {"a": Change(0.0, 2**0.5, 1.0, 1)}),
        ({"a": np.zeros(2)}, {"a": np.zeros(3)}, {"a": Change(others=("a",))}),
        ({"a": np.array([1, 2])}, {"a": np.array([1, 4])}, {"a": Change(5**0.5, 2.0, 2.0, 1)}),
        ([np.float32(1)], [np.float32(3)], {"0": Change(1.0, 2.0, 2.0, 1)}),
        ({"a": np.array([True])}, {"a": np.array([False])}, {"a": Change(1.0, 1.0, 1.0, 1)}),
        (np.array([3 + 4j]), np.array([0j]), {"": Change(5.0, 5.0, 5.0, 1)}),
        ({"a": {}}, {"a": {}}, {"a": Change()}),
        ({"a": ()}, {"a": []}, {"a": Change(others=("a",))}),
        ({"a": 1}, {"a": True}, {"a": Change(others=("a",))}),
        ({"a": None}, {"b": None}, {"a": Change(others=("a",)), "b": Change(others=("b",))}),
        ({"a": np.array([b"x"])}, {"a": np.array([b"y"])}, {"a": Change(others=("a",))}),
        ({"a": np.array([2**63 - 1])}, {"a": np.array([2**63 - 2])},
         {"a": Change(2.0**63, 0.0, 0.0, 1)}),
        ({"a": np.array([np.nan])}, {"a": np.array([np.nan])},
         {"a": Change(np.nan, np.nan, 0.0, 0)}),
        ({"a": np.array([1.0])}, {"a": np.array([np.nan])}, {"a": Change(1.0, np.nan, 0.0, 1)}),
    ],
)  # fmt: skip
def test_compare(before: Any, after: Any, expected: dict[str, Change]) -> None:
    """Every kind of value is compared; what has no norm is named, and NaN is no number."""
    found = compare(before, after)
    assert repr(found) == repr(expected)


def test_tensors() -> None:
    """Tensors of dtypes that numpy lacks are compared by their values."""
    torch = pytest.importorskip("torch")
    old, new = torch.ones(4, dtype=torch.bfloat16), torch.full((4,), 3.0, dtype=torch.bfloat16)
    assert compare({"w": old}, {"w": new}) == {"w": Change(2.0, 4.0, 2.0, 1)}


def test_no_number_is_null(cli: Cli, url: str) -> None:
    """What JSON can not say is null there: every parser reads it."""
    with learner(url) as publisher:
        first = publisher.publish({"c": {"w": np.ones(3)}}).wait(WAIT)
        publisher.publish({"c": {"w": np.full(3, np.inf)}}).wait(WAIT)
    text = cli("diff", "team/run", first, "--json").stdout
    found = json.loads(text, parse_constant=lambda name: pytest.fail(name))
    assert found["components"]["c"]["norm_of_change"] is None
    assert found["components"]["c"]["arrays"] == 1
    assert "inf" in cli("diff", "team/run", first).stdout
