"""The league example, trained: who is played against, what is sent, what outlives the driver."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from redis_state_sync import History, open_store
from redis_state_sync.embedded import EmbeddedServer
from tests.contract.servers import free_port, start, valkey_binary

ray = pytest.importorskip("ray")

FOLDER = Path(__file__).parents[2] / "examples" / "league"
NAMESPACE = "a-league"
DEADLINE_S = 60.0
LEARNING_S = 120.0

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    with start(valkey_binary(), port=free_port()) as running:
        yield running


@dataclass
class Seen:
    """What was seen of one training.

    Attributes:
        played: (EnvRunner, pin) of all looks.
        wrong: Pins whose weights were others than those that the EnvRunner had.
        results: Of each call of `train`.
        newest: Components of the newest version, and their sizes.
        left: What EnvRunners played against when all other pins were gone.
        healthy: How many EnvRunners were never restarted.
    """

    played: set[tuple[int, str]] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)
    results: list[dict[str, Any]] = field(default_factory=list)
    newest: dict[str, int] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    healthy: int = 0


def opponent_of(runner: Any) -> tuple[int, tuple[str, Any] | None, dict[str, Any], int]:
    """Within an EnvRunner: who it is, whom it plays against, by which weights, and its process."""
    (league,) = [c for c in runner._callbacks if type(c).__name__ == "League"]
    weights = {n: t.detach().numpy() for n, t in runner.module["opponent"].state_dict().items()}
    return runner.worker_index, league._playing, weights, os.getpid()


class Training:
    """Trains, and looks at the EnvRunners after each call."""

    def __init__(self, algorithm: Any, history: History) -> None:
        self.algorithm = algorithm
        self.history = history
        self.seen = Seen()
        self.pids: set[int] = set()

    def look(self) -> list[str]:
        self.seen.results.append(self.algorithm.train())
        group = self.algorithm.env_runner_group
        names = []
        for index, playing, weights, pid in group.foreach_env_runner(
            opponent_of, local_env_runner=False
        ):
            self.pids.add(pid)
            if playing is None:
                continue
            name, version = playing
            names.append(name)
            self.seen.played.add((index, name))
            pinned = self.history.fetch(version)["rl_module/main"]
            same = weights.keys() == pinned.keys() and all(
                np.array_equal(weights[key], pinned[key]) for key in pinned
            )
            if not same:
                self.seen.wrong.append(name)
        return names

    def until(self, true: Any) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not true(self.look()):
            assert time.monotonic() < deadline, self.seen.played

    def win_rate(self, name: str) -> float:
        games = self.seen.results[-1]["env_runners"].get("league", {}).get(name, {})
        return float(games.get("win_rate", 0.0))


@pytest.fixture(scope="module")
def seen(server: EmbeddedServer) -> Iterator[Seen]:
    """One training, and all that was seen of it."""
    with pytest.MonkeyPatch.context() as patch, closing(open_store(server.url)) as store:
        patch.syspath_prepend(FOLDER)
        patch.setenv("PYTHONPATH", f"{FOLDER}:{os.environ.get('PYTHONPATH', '')}")  # EnvRunners'.
        train, league = import_module("train"), import_module("league")
        ray.init(
            include_dashboard=False,
            num_cpus=4,
            object_store_memory=200_000_000,
            log_to_driver=False,
        )
        history = History(store, NAMESPACE)
        algorithm = train.make_config(server.url, NAMESPACE).build_algo()
        try:
            training = Training(algorithm, history)
            assert train.take_up(algorithm, history) == 0
            pins = [league.pin_name(number) for number in range(40)]
            history.pin(pins[0], "newest")
            training.until(lambda names: names == [pins[0]] * 2)
            history.pin(pins[1], "newest")
            training.until(lambda names: {(1, pins[1]), (2, pins[1])} <= training.seen.played)
            number, deadline = 1, time.monotonic() + LEARNING_S
            while training.win_rate(pins[0]) < 0.85 and time.monotonic() < deadline:
                training.look()
                if len(training.seen.results) % 10 == 0:
                    number += 1
                    history.pin(pins[number], "newest")
            _, manifest = history.find("newest")
            training.seen.newest = {n: c.size for n, c in manifest.components.items()}
            for name in pins[1 : number + 1]:
                history.unpin(name)
            training.until(lambda names: names == [pins[0]] * 2)
            training.seen.left = [pins[0]]
            training.seen.healthy = 2 if len(training.pids) == 2 else 0
            yield training.seen
        finally:
            algorithm.stop()
            ray.shutdown()
            for module in ("train", "league", "players", "nim", "matchmaking"):
                sys.modules.pop(module, None)


def test_opponents_are_what_was_pinned(seen: Seen) -> None:
    """What an EnvRunner plays against is the pinned version, bit by bit, at every look."""
    assert len(seen.results) >= 5
    assert seen.wrong == []


def test_new_pins_reach_running_env_runners(seen: Seen) -> None:
    """A past self that was pinned after the EnvRunners started is met by each of them."""
    assert {(1, "league/00001"), (2, "league/00001")} <= seen.played


def test_opponents_are_never_sent(seen: Seen) -> None:
    """A version has `main` and next to nothing else, and no more is sent however large the pool."""
    assert seen.newest["rl_module/opponent"] < 200
    assert seen.newest["rl_module/main"] > 4000
    one = sum(seen.newest.values())
    for result in seen.results:
        state = result["redis_state"]
        versions = state["num_publishes_lifetime"] + state["num_versions_dropped_lifetime"] + 1
        assert state["num_bytes_sent_lifetime"] <= versions * one
    assert seen.results[-1]["redis_state"]["num_bytes_saved_lifetime"] > 0
    assert seen.results[-1]["redis_state"]["num_pushes_lifetime"] == 0


def test_results_name_the_opponents(seen: Seen) -> None:
    """Win rates and numbers of games are there for each opponent by its pin's name."""
    league = seen.results[-1]["env_runners"]["league"]
    assert {"league/00000", "league/00001"} <= league.keys()
    for games in league.values():
        assert 0 <= games["win_rate"] <= 1
        assert games["games_lifetime"] >= 1


def test_main_gets_better_than_it_was(seen: Seen) -> None:
    """Against its first self it wins far more than half of the games, after a while."""
    rates = [
        result["env_runners"]["league"]["league/00000"]["win_rate"]
        for result in seen.results
        if "league/00000" in result["env_runners"].get("league", {})
    ]
    assert max(rates) > 0.75


def test_pins_that_are_removed(seen: Seen) -> None:
    """Where opponents are gone others are played against, and no EnvRunner comes to an end."""
    assert seen.left == ["league/00000"]
    assert seen.healthy == 2


def train(url: str, *words: str) -> str:
    """What the script printed."""
    done = subprocess.run(
        [sys.executable, str(FOLDER / "train.py"), "--namespace", "scripted", *words],
        env={**os.environ, "REDIS_STATE_SYNC_URL": url},
        capture_output=True,
        text=True,
        timeout=140,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_driver_that_starts_again(server: EmbeddedServer) -> None:
    """A second driver goes on with the first one's league, and with its newest self as `main`."""
    first = train(server.url, "--iterations", "6", "--pin-every", "2", "--keep", "2")
    assert "the league has 0 past selves; the next one is number 0" in first
    with closing(open_store(server.url)) as store:
        history = History(store, "scripted")
        before = history.pins()
        assert sorted(before) == ["league/00000", "league/00002", "league/00003"]
        second = train(server.url, "--iterations", "2", "--pin-every", "2")
        assert "the league has 3 past selves; the next one is number 4" in second
        after = history.pins()
        assert sorted(after) == [*sorted(before), "league/00004", "league/00005"]
        assert {name: after[name] for name in before} == before
        assert max(before.values()).generation < after["league/00004"].generation
        old, new = (history.fetch(f"league/{n:05}")["rl_module/main"] for n in (3, 4))
        assert all(np.array_equal(old[key], new[key]) for key in {*old, *new})
    assert "league/00000" in re.findall(r"(league/\d{5}): \d+% of", second)
