"""The parts of the league example that start no Ray: the rules, and whom to play against."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from redis_state_sync import CodecError, StoreError, UnknownVersionError

FOLDER = Path(__file__).parents[2] / "examples" / "league"


@pytest.fixture
def part(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Imports a module of the example, as its scripts do."""
    monkeypatch.syspath_prepend(FOLDER)
    before = set(sys.modules)
    yield import_module
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(FOLDER)):
            del sys.modules[name]


NAMES = ["league/00000", "league/00003", "league/00007"]


def test_every_opponent_may_be_met(part: Any) -> None:
    """Probabilities sum to one, and nobody is left out, not even one that is always beaten."""
    chances = part("matchmaking").chances
    for rates in ({}, dict.fromkeys(NAMES, 1.0), {NAMES[0]: 1.0, NAMES[1]: 0.0}):
        found = chances(NAMES, rates)
        assert list(found) == NAMES
        assert sum(found.values()) == pytest.approx(1)
        assert min(found.values()) > 0.0005
    assert chances(["only"], {}) == {"only": pytest.approx(1)}


def test_the_hard_ones_are_met_more_often(part: Any) -> None:
    """The less often one is beaten the likelier it is; one that was never met is between them."""
    found = part("matchmaking").chances(
        ["easy", "unknown", "hard", "newest"],
        {"easy": 0.95, "hard": 0.1, "newest": 1.0},
    )
    assert found["easy"] < found["unknown"] < found["hard"]
    assert found["newest"] >= 0.3
    flat = part("matchmaking").chances(NAMES, {NAMES[0]: 0.9}, newest=0.0, hardness=0.0)
    assert list(flat.values()) == [pytest.approx(1 / 3)] * 3


def test_picks_are_as_likely_as_they_should_be(part: Any) -> None:
    """Over the whole range of random numbers each name has its share, at both ends, too."""
    pick = part("matchmaking").pick
    probabilities = {"a": 0.2, "b": 0.5, "c": 0.3}
    counts = Counter(pick(probabilities, number / 1000) for number in range(1000))
    assert {name: count / 1000 for name, count in counts.items()} == pytest.approx(
        probabilities, abs=0.002
    )
    assert pick(probabilities, 0.0) == "a"
    assert pick(probabilities, 1 - 2**-53) == "c"


def test_results_follow_what_is_played(part: Any) -> None:
    """A win rate begins in the middle, and goes to where the games are."""
    results = part("matchmaking").Results()
    results.add("x", 1)
    assert 0.5 < results.win_rates["x"] < 0.6
    for _ in range(200):
        results.add("x", 1)
        results.add("y", 0)
    assert results.win_rates["x"] > 0.99
    assert results.win_rates["y"] < 0.01


def test_the_game(part: Any) -> None:
    """Players take turns; who takes the last stone wins, and the other one loses."""
    nim = part("nim")
    env, chance = nim.Nim(), random.Random(3)
    firsts = Counter()
    for _ in range(200):
        seen, _ = env.reset()
        (turn,) = seen
        firsts[turn] += 1
        left, over = nim.STONES, False
        while not over:
            assert seen[turn].tolist().index(1.0) == left
            action = chance.randrange(nim.MOST)
            left -= min(action + 1, left)
            player, turn = turn, nim.PLAYERS[1 - nim.PLAYERS.index(turn)]
            seen, rewards, terminated, _, _ = env.step({player: action})
            over = terminated["__all__"]
            assert over == (left == 0)
            assert rewards == ({player: 1.0, turn: -1.0} if over else {})
            assert set(seen) == (set(nim.PLAYERS) if over else {turn})
    assert min(firsts.values()) > 60


def test_who_leaves_a_multiple_of_four_wins(part: Any) -> None:
    """There is something to learn: the right play beats any other from seventeen stones."""
    nim = part("nim")
    env, chance = nim.Nim(), random.Random(4)
    for _ in range(100):
        seen, _ = env.reset()
        while (turn := next(iter(seen))) != "main":
            seen, _ = env.reset()
        over = False
        while not over:
            (player,) = seen
            left = seen[player].tolist().index(1.0)
            action = (left % 4 - 1) if player == "main" else chance.randrange(nim.MOST)
            seen, rewards, terminated, _, _ = env.step({player: action})
            over = terminated["__all__"]
        assert turn == "main"
        assert rewards["main"] == 1.0


def test_names_of_pins(part: Any) -> None:
    """Names sort as their numbers do; the next number follows the greatest that is there."""
    league = part("league")
    names = [league.pin_name(number) for number in (0, 7, 12, 99_999)]
    assert names == sorted(names)
    assert league.next_number([]) == 0
    assert league.next_number(["best", "league/00002", "league/00011", "league/old"]) == 12


class Pool:
    """A pool of which some can not be had."""

    def __init__(self, errors: dict[str, Exception], held: tuple[str, ...] = ()) -> None:
        self._errors = errors
        self.held = dict.fromkeys(held)

    def names(self) -> list[str]:
        return NAMES

    def get(self, name: str) -> str:
        if name in self.held or name not in self._errors:
            return f"snapshot of {name}"
        raise self._errors[name]


@pytest.mark.parametrize(
    ("errors", "held", "found"),
    [
        ({NAMES[0]: UnknownVersionError("gone"), NAMES[2]: CodecError("damaged")}, (), NAMES[1]),
        (dict.fromkeys(NAMES, StoreError("away")), (NAMES[2],), NAMES[2]),
        (dict.fromkeys(NAMES, StoreError("away")), (), None),
        (dict.fromkeys(NAMES, UnknownVersionError("gone")), (), None),
    ],
)
def test_an_opponent_that_can_not_be_had(
    part: Any, errors: dict[str, Exception], held: tuple[str, ...], found: str | None
) -> None:
    """Where one is gone, damaged or out of reach another one is drawn; none is no error."""
    league = part("league").League()
    league._pool = Pool(errors, held)
    for _ in range(50):
        name, snapshot = league._opponent()
        assert name == found
        assert snapshot == (None if found is None else f"snapshot of {found}")
