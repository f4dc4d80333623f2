"""The staleness benchmark's own parts: intervals, the tap, the grid of runs, tables."""

from __future__ import annotations

import math
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ray")

import torch
from ray.rllib.core.learner.torch.torch_learner import TorchLearner
from ray.rllib.utils.metrics import DIFF_NUM_GRAD_UPDATES_VS_SAMPLER_POLICY

from benchmarks import (
    curve_report,
    curve_tasks,
    filling,
    grid,
    intervals,
    lag_cells,
    lag_report,
    lag_run,
    lag_tap,
    pages,
    sleepy_env,
    staleness,
)
from benchmarks.intervals import Interval
from benchmarks.lag_cells import PREFETCH, PULL, PUSH, SAMPLE, Cell, Timing
from benchmarks.lag_results import LagResults, of
from benchmarks.run_store import RunKey, RunStore, digest_of
from benchmarks.sleepy_env import OWN, RUNNER, TIME, SleepyEnv

ROOT = Path(__file__).resolve().parents[2]
CELL = Cell(100, 4)
TIMING = Timing()


# ------------------------------------------------------------------ intervals


def test_interval_is_students() -> None:
    """The interval of a mean is that of Student's t, with one degree of freedom less than runs."""
    five = intervals.of_mean([1.0, 2.0, 3.0, 4.0, 5.0])
    # t(0.975, 4) = 2.776445, of the tables.
    assert five.mean == 3
    assert five.high - five.mean == pytest.approx(2.776445 * math.sqrt(2.5 / 5), rel=1e-6)
    assert five.mean - five.low == pytest.approx(five.high - five.mean)
    two = intervals.of_mean([1.0, 3.0])
    assert two.high - two.mean == pytest.approx(12.7062, rel=1e-5)


def test_interval_of_one_run_is_not_known() -> None:
    """One run has a mean and no interval; none is an error."""
    one = intervals.of_mean([2.0])
    assert (one.mean, one.n) == (2, 1)
    assert math.isnan(one.low)
    assert math.isnan(one.high)
    with pytest.raises(ValueError, match="no runs"):
        intervals.of_mean([])


def test_ratio_is_of_pairs() -> None:
    """A ratio is the geometric mean of the pairs', and its interval that of their logarithms."""
    ratio = intervals.of_ratio([2.0, 8.0, 3.0], [1.0, 2.0, 3.0])
    logarithms = intervals.of_mean([math.log(2), math.log(4), 0.0])
    assert ratio.mean == pytest.approx(2)
    assert ratio.low == pytest.approx(math.exp(logarithms.low))
    other_way = intervals.of_ratio([1.0, 2.0, 3.0], [2.0, 8.0, 3.0])
    assert other_way.high == pytest.approx(1 / ratio.low)
    # What all pairs share does not widen it, however much runs differ from seed to seed.
    same = intervals.of_ratio([2.0, 20.0, 200.0], [4.0, 40.0, 400.0])
    assert same.low == pytest.approx(0.5)
    assert same.high == pytest.approx(0.5)
    with pytest.raises(ValueError, match="shorter"):
        intervals.of_ratio([1.0, 2.0], [1.0])


# ---------------------------------------------------------------------- tap


class Learner:
    """What the tap touches of RLlib's, with Ray's own way to work out the metric."""

    _compute_off_policyness = TorchLearner._compute_off_policyness

    def __init__(self) -> None:
        self._weights_seq_no = 0
        self.logged: list[float] = []
        self.metrics = SimpleNamespace(log_dict=self._log)

    def _log(self, values: dict[Any, Any], window: int) -> None:
        (key,) = values
        assert key == ("default_policy", DIFF_NUM_GRAD_UPDATES_VS_SAMPLER_POLICY)
        self.logged.append(float(values[key]))

    def after_gradient_based_update(self, *, timesteps: Any) -> str:
        return "as it was"

    def update(self, module_batch: dict[str, Any]) -> None:
        """As `Learner.update`: counts up first."""
        self._weights_seq_no += 1
        self._compute_off_policyness({"default_policy": module_batch})
        assert self.after_gradient_based_update(timesteps={}) == "as it was"


class Clock:
    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def batch(stamps: list[int], acted: list[float], mask: list[bool] | None = None) -> dict[str, Any]:
    seen = np.zeros((len(stamps), 8), np.float32)
    seen[:, TIME] = np.asarray(acted) % sleepy_env.CLOCK_PERIOD_S / sleepy_env.CLOCK_PERIOD_S
    seen[:, RUNNER] = 3 / sleepy_env.MAX_RUNNERS
    seen[:, OWN] = 0.002
    columns = {"weights_seq_no": torch.tensor(stamps), "obs": torch.from_numpy(seen)}
    if mask is not None:
        columns["loss_mask"] = torch.tensor(mask)
    return columns


def test_tap_is_rays_metric() -> None:
    """The lag of a batch is what Ray works out of it, of the steps that are not masked."""
    learner, clock = Learner(), Clock(2000.0)
    tap = lag_tap.LagTap(learner, clock=clock)
    for _ in range(5):
        learner.update(batch([0, 0], [1999.0, 1999.0]))
    learner.update(batch([2, 3, 5, 0], [1999.0] * 4, [True, True, True, False]))
    row = tap.rows[-1]
    # Update 6, of steps with weights 2, 3 and 5; the masked step would add a lag of 6.
    assert row["mean"] == pytest.approx((4 + 3 + 1) / 3)
    assert [r["mean"] for r in tap.rows] == pytest.approx(learner.logged)
    assert (row["steps"], row["update"]) == (3, 6)
    assert (row["max"], row["spread"], row["p50"]) == (4, 3, 3)
    assert row["p90"] == pytest.approx(3.8)
    assert row["runner"] == 3
    assert row["own_ms"] == pytest.approx(2)


def test_tap_tells_what_a_lag_is_made_of() -> None:
    """Acting counts updates finished when a step was taken; waiting counts those since."""
    learner, clock = Learner(), Clock(3998.0)
    tap = lag_tap.LagTap(learner, clock=clock)
    for _ in range(4):  # Updates 1 to 4 end at 3999, 4000, 4001 and 4002.
        clock.now += 1
        learner.update(batch([0], [3990.0]))
    clock.now = 4003.0
    # Two steps with weights 1: when updates 1 and 2 had ended, and when all four had.
    learner.update(batch([1, 1], [4000.5, 4002.5]))
    row = tap.rows[-1]
    assert row["acting"] == pytest.approx((1 + 3) / 2)
    assert row["waiting"] == pytest.approx((3 + 1) / 2)
    assert row["mean"] == row["acting"] + row["waiting"] == 4
    assert row["seconds"] == pytest.approx(4003 - 3999)
    assert row["begun"] == pytest.approx(4000.5, abs=0.001)


def test_tap_of_padded_sequences() -> None:
    """Of batches of sequences, as recurrent modules have, padded steps do not count."""
    learner = Learner()
    tap = lag_tap.LagTap(learner, timed=False)
    learner._weights_seq_no = 9
    learner.update(
        {
            "weights_seq_no": torch.tensor([[8, 9, 0], [7, 0, 0]]),
            "loss_mask": torch.tensor([[True, True, False], [True, False, False]]),
        }
    )
    assert tap.rows[-1]["mean"] == pytest.approx((2 + 1 + 3) / 3) == learner.logged[-1]
    assert tap.rows[-1]["steps"] == 3


# -------------------------------------------------------------- environment


class Time:
    """Stands in for the module: passes when it is slept."""

    def __init__(self) -> None:
        self.now = 5000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Context(dict[str, Any]):
    """As RLlib's EnvContext."""

    worker_index = 2


# The second of three has the mean pace.
CONFIG = {"step_s": 0.01, "fragment_s": 1.0, "runners": 3, "seed": 7}


def stepped(monkeypatch: pytest.MonkeyPatch, own: list[float]) -> tuple[list[float], list[Any]]:
    """When each step ended, and the observations, of an EnvRunner that takes `own` before each."""
    clock = Time()
    monkeypatch.setattr(sleepy_env, "time", clock)
    env = SleepyEnv(Context(CONFIG))
    seen = [env.reset()[0]]
    ended = [clock.now]
    for seconds in own:
        clock.now += seconds
        seen.append(env.step(0)[0])
        ended.append(clock.now)
    return ended, seen


def test_environment_keeps_its_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an EnvRunner takes for itself does not delay steps, and is in the observations."""
    idle, _ = stepped(monkeypatch, [0.0] * 200)
    busy, seen = stepped(monkeypatch, [0.004, *[0.0] * 97, 0.3, *[0.004] * 101])
    assert busy[0] == idle[0]  # Begins late by what its seed says.
    assert 5000 < busy[0] < 5001
    assert busy[-1] == pytest.approx(idle[-1])
    assert np.diff(idle).min() >= 0.005 - 1e-9
    assert np.mean(np.diff(idle)) == pytest.approx(0.01, rel=0.1)
    assert seen[1][OWN] == pytest.approx(0.004)
    assert seen[99][OWN] == pytest.approx(0.3)
    assert seen[5][RUNNER] * sleepy_env.MAX_RUNNERS == 2
    assert seen[-1][TIME] * sleepy_env.CLOCK_PERIOD_S == pytest.approx(busy[-1] % 1000, abs=1e-3)


def test_some_environments_are_slower() -> None:
    """No two EnvRunners have the same pace, and together they are as fast as said."""
    for runners in (2, 4, 8, 16):
        paces = [sleepy_env.pace(runner, runners) for runner in range(1, runners + 1)]
        assert sorted(set(paces)) == paces
        assert np.mean(paces) == pytest.approx(1)
        assert 1.05 < paces[-1] / paces[0] <= 1.25


def test_environment_does_not_make_up_for_a_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a stall of a second, a part is made up for, and then steps sleep again."""
    own = [0.0] * 5 + [1.0] + [0.0] * 100
    ended, _ = stepped(monkeypatch, own)
    steps = np.diff(ended)[6:]
    assert 40 <= np.count_nonzero(steps < 0.005) <= 80
    assert steps[-20:].min() >= 0.005 - 1e-9


def test_env_steps_per_second_do_not_depend_on_the_window() -> None:
    """A rate is of each EnvRunner's whole fragments, from the first one's begin to the last's."""
    rows = [
        {"runner": runner, "begun": begun, "steps": 100}
        for runner, begins in ((1, [10.0, 10.5, 11.0]), (2, [10.2, 11.2, 12.2, 13.2]))
        for begun in reversed(begins)
    ]
    assert lag_run.steps_per_s(rows) == pytest.approx(200 + 100)
    with pytest.raises(lag_run.TooFewUpdatesError):
        lag_run.steps_per_s(rows[:1])


# --------------------------------------------------------------------- grid


def key(arm: str = SAMPLE, seed: int = 0) -> RunKey:
    return staleness.key_of(CELL, arm, seed, TIMING)


def test_finished_runs_are_not_run_again(tmp_path: Path) -> None:
    """A second call makes what is missing, and what was left half-written, and nothing else."""
    store, ran = RunStore(tmp_path), []

    def execute(which: RunKey) -> dict[str, Any]:
        ran.append(which)
        return {"mean": 1.0}

    plan = [key(seed=seed) for seed in range(3)]
    assert grid.go(plan, execute, store, print).made == plan
    half = store.path(plan[1])
    half.write_text(half.read_text()[:20])
    store.path(plan[2]).unlink()
    ran.clear()
    tally = grid.go([*plan, key(PULL)], execute, store, print)
    assert ran == tally.made == [plan[1], plan[2], key(PULL)]
    assert tally.there == [plan[0]]
    assert len(store.runs()) == 4
    assert not list(tmp_path.rglob("*.tmp"))


def test_runs_of_another_config_are_others() -> None:
    """What a run depends on is in its name; the order of its settings is not."""
    assert key() != staleness.key_of(CELL, SAMPLE, 0, Timing(seconds=5))
    assert key(SAMPLE).digest != key(PREFETCH).digest
    assert digest_of({"a": 1, "b": 2}) == digest_of({"b": 2, "a": 1})
    assert digest_of({"a": 1}) != digest_of({"a": 2})


def test_a_failed_run_is_said_and_tried_once_more(tmp_path: Path) -> None:
    """A run that fails is noted, tried once more after recovering, and then said to be missing."""
    store, said, recovered, calls = RunStore(tmp_path), [], [], []

    def execute(which: RunKey) -> dict[str, Any]:
        calls.append(which)
        if which.arm == PUSH or len(calls) == 1:
            raise RuntimeError(f"no {which.arm}")
        return {"mean": 1.0}

    plan = [key(PULL), key(PUSH), key(SAMPLE)]
    tally = grid.go(plan, execute, store, said.append, lambda: recovered.append(1))
    assert calls == [key(PULL), key(PULL), key(PUSH), key(PUSH), key(SAMPLE)]
    assert tally.failed == [key(PUSH)]
    assert tally.made == [key(PULL), key(SAMPLE)]
    assert len(recovered) == 3
    assert [f["arm"] for f in store.failures()] == [PULL, PUSH, PUSH]
    assert sum("failed" in line and "no push" in line for line in said) == 2


def test_arms_take_turns_seed_by_seed() -> None:
    """Seeds are outermost, arms of one cell and seed neighbours, and each arm is first in turn."""
    arms = list(lag_cells.TITLES)
    plan = staleness.plan_of([CELL, Cell(20, 8)], arms, range(5), TIMING)
    assert len(plan) == 2 * 5 * 5
    assert [k.seed for k in plan] == sorted(k.seed for k in plan)
    turns = [plan[i : i + 5] for i in range(0, len(plan), 5)]
    assert all(len({(k.cell, k.seed) for k in turn}) == 1 for turn in turns)
    assert all(sorted(k.arm for k in turn) == sorted(arms) for turn in turns)
    assert {turn[0].arm for turn in turns if turn[0].cell == CELL.name} == set(arms)


def test_a_hung_run_is_ended() -> None:
    """What waits for ever is ended, and the alarm is off afterwards."""
    with pytest.raises(grid.RunHungError, match="after 0 s"), grid.at_most(0.05):
        threading.Event().wait(30)
    with grid.at_most(0.01):
        pass
    threading.Event().wait(0.05)


@pytest.mark.parametrize("name", ["100", "x4", "100x0", "100x4l2", "0x4", "100x99"])
def test_cells_are_checked(name: str) -> None:
    """A name that is no cell is refused with what one looks like."""
    with pytest.raises(ValueError, match="100x4l1"):
        Cell.parse(name)
    assert Cell.parse("100x4l1") == Cell(100, 4, learners=1)


@pytest.mark.parametrize("cell", lag_cells.WHOLE, ids=lambda c: c.name)
def test_arms_differ_in_nothing_else(cell: Cell) -> None:
    """Of the configs of two arms only what the arm is about differs."""
    plain = lag_cells.make_config(cell, PUSH, 3, "redis://h", "n").to_dict()
    pull = lag_cells.make_config(cell, PULL, 3, "redis://h", "n").to_dict()
    ours = lag_cells.make_config(cell, SAMPLE, 3, "redis://h", "n").to_dict()
    assert {k for k in plain if plain[k] != pull[k]} == {"use_env_runner_state_server"}
    changed = {k for k in plain if repr(plain[k]) != repr(ours.get(k))}
    assert changed <= {"env_runner_cls", "callbacks_on_algorithm_init", "callbacks_on_train_result"}
    assert (
        plain["_train_batch_size_per_learner"] == cell.fragment == plain["rollout_fragment_length"]
    )


# ------------------------------------------------------------------- tables


def run(arm: str, seed: int, lag: float, cell: Cell = CELL, **more: Any) -> dict[str, Any]:
    where = staleness.key_of(cell, arm, seed, TIMING)
    numbers = dict.fromkeys(lag_run.MEANS, lag)
    rates = {"updates_per_s": 8.0, "steps_per_s": 800.0, "busy_cores": 1.0, "batches": 120}
    facts = {"facts": {"cpu": "some", "boot": "b"}, "source": "s", "wall_s": 30.0}
    found = {"cell": cell.name, "arm": arm, "seed": seed, "digest": where.digest}
    return {**found, **numbers, **rates, **facts, **more}


def test_results_pair_seeds() -> None:
    """A ratio is of runs of one seed, in whatever order, and of no run without its like."""
    runs = [run(PUSH, s, 10.0 * (s + 1)) for s in (2, 0, 1)]
    runs += [run(SAMPLE, s, 5.0 * (s + 1)) for s in (0, 1, 2, 3)]
    results = LagResults(runs, [], TIMING)
    ratio = results.ratio(CELL, SAMPLE, PUSH, of("mean"))
    assert ratio is not None
    assert ratio.n == 3
    assert (ratio.low, ratio.high) == pytest.approx((0.5, 0.5))
    assert results.mean(CELL, PUSH, of("mean")).mean == 20
    assert results.ratio(CELL, SAMPLE, PULL, of("mean")) is None


def test_results_of_another_config_are_left_out() -> None:
    """Runs of another timing are counted, and not put together with these."""
    results = LagResults([run(PUSH, 0, 1.0), run(PUSH, 1, 1.0)], [], Timing(seconds=3))
    assert results.others == 2
    assert results.cells == []
    assert "Not measured" in lag_report.lag_table(results)


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (Interval(0.6, 0.55, 0.64, 5), "yes"),
        (Interval(0.6, 0.55, 0.7, 5), "yes, not certain"),
        (Interval(0.7, 0.6, 0.8, 5), "no, not certain"),
        (Interval(0.7, 0.66, 0.8, 5), "no"),
        (Interval(0.6, math.nan, math.nan, 1), "yes, one run"),
    ],
)
def test_verdict(ratio: Interval, text: str) -> None:
    """A target is met if the mean reaches it, and certainly if all of the interval does."""
    assert lag_report.verdict(ratio, 0.65) == text


def test_tables_say_what_was_measured() -> None:
    """Tables have means with intervals, changes, cells that were not run, and failures."""
    runs = [run(PUSH, s, 10.0 + s, own_ms=1.0) for s in range(3)]
    runs += [run(SAMPLE, s, (10.0 + s) / 2, own_ms=1.3) for s in range(3)]
    runs += [run(PULL, s, 6.0 + s, own_ms=1.0) for s in range(3)]
    failures = [{"cell": "100x4", "arm": PULL, "seed": 1, "error": "Trace\nBoom: no"}]
    results = LagResults(runs, failures, TIMING)
    table = lag_report.lag_table(results)
    assert "| 11 ± 2.48 |" in table
    assert "| -50.0 % (-50.0 to -50.0) |" in table
    facts = lag_report.facts(results)
    assert "20 steps, 16 EnvRunners" in facts
    assert "100 steps, 4 EnvRunners;" not in facts.partition("not run:")[2].partition("\n")[0]
    assert "100x4, pull, seed 1: Boom: no" in facts
    targets = lag_report.target_table(results)
    assert "| -35 % | -50.0 % (-50.0 to -50.0) | yes |" in targets
    # (5 + 1) / (5 + 1.3) ms: 4.8 % fewer env steps per second.
    assert "| within 2 % | -4.8 % (-4.8 to -4.8) | no |" in targets


def test_pages_have_all_blocks() -> None:
    """Every table has its place, every marker its table, and no benchmark touches others'."""
    for report in (lag_report, curve_report):
        shown = [n for page in report.PAGES for n in filling.names_in((ROOT / page).read_text())]
        assert sorted(n for n in shown if n not in pages.BLOCKS) == sorted(report.BLOCKS)
    text = "<!-- bench:a -->\nold\n<!-- /bench -->\n<!-- bench:b -->\nkept\n<!-- /bench -->\n"
    assert filling.fill(text, {"a": "new"}) == text.replace("old", "new")


def test_plot_is_drawn(tmp_path: Path) -> None:
    """A plot is drawn of whatever arms and cells there are."""
    runs = [run(PUSH, 0, 9.0), run(SAMPLE, 0, 6.0), run(PUSH, 0, 9.0, Cell(20, 8))]
    lag_report.save_plot(LagResults(runs, [], TIMING), tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


# ------------------------------------------------------------------- curves


def curve(arm: str, seed: int, steps: int, reached: bool = True) -> dict[str, Any]:
    case = curve_tasks.CASES[0]
    digest = digest_of(curve_tasks.plain_config(case, arm))
    found = {"cell": case.name, "arm": arm, "seed": seed, "digest": digest, "reached": reached}
    told = {"facts": {"boot": "b"}, "source": "s", "wall_s": 1.0, "lag": 2.0}
    return {**found, **told, "steps": steps, "seconds": 9.0, "curve": [[steps, 9.0, 1.0]]}


def test_runs_that_did_not_reach_it_are_said() -> None:
    """Of runs that used up their steps, a mean is a lower bound, and says how many they were."""
    runs = [curve(PUSH, 0, 100), curve(PUSH, 1, 300, reached=False)]
    needed = curve_report.needed(runs, "steps")
    assert str(needed) == "more than 200 (1 of 2 did not reach it)"
    assert "more than" not in str(curve_report.needed(runs[:1], "steps"))


def test_ratio_leaves_out_runs_that_did_not_reach_it() -> None:
    """A ratio is of pairs that both reached the return: of others it is not known."""
    ours = [curve(SAMPLE, 0, 100), curve(SAMPLE, 1, 1), curve(SAMPLE, 2, 1, reached=False)]
    theirs = [curve(PUSH, 2, 100), curve(PUSH, 0, 200), curve(PUSH, 1, 100, reached=False)]
    ratio = curve_report.ratio(ours, theirs, "steps")
    assert ratio is not None
    assert (ratio.mean, ratio.n) == (pytest.approx(0.5), 1)
    assert curve_report.ratio(ours[1:2], theirs, "steps") is None


def test_curve_tables_and_plot(tmp_path: Path) -> None:
    """Tables and plot are made of the runs there are; those of another config are left out."""
    old = {**curve(PULL, 0, 50), "digest": "another"}
    results = curve_report.CurveResults([curve(PUSH, 0, 100), curve(SAMPLE, 0, 80), old])
    table = curve_report.table(results)
    assert "| -20 % |" in table
    assert "50" not in table.replace("150", "")
    curve_report.save_plot(results, tmp_path / "c.png")
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
