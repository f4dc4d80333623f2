"""The runs of the staleness benchmark, put together over seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks import intervals, lag_cells
from benchmarks.intervals import Interval
from benchmarks.lag_cells import Cell, Timing
from benchmarks.run_store import RunStore, digest_of

Run = Mapping[str, Any]
Value = Callable[[Run], float]


class LagResults:
    """Runs of one timing, by cell, arm and seed.

    Args:
        runs: As `RunStore.runs`; those of another config are left out and counted.
        failures: As `RunStore.failures`.
        timing: Which runs are meant.
    """

    def __init__(
        self, runs: Sequence[Run], failures: Sequence[Mapping[str, Any]], timing: Timing
    ) -> None:
        self.timing = timing
        self.failures = list(failures)
        self.others = 0
        self._runs: dict[tuple[Cell, str], dict[int, Run]] = {}
        for run in runs:
            cell, arm = Cell.parse(run["cell"]), str(run["arm"])
            if run["digest"] != digest_of(lag_cells.plain_config(cell, arm, timing)):
                self.others += 1
                continue
            self._runs.setdefault((cell, arm), {})[int(run["seed"])] = run

    @classmethod
    def load(cls, store: RunStore, timing: Timing) -> LagResults:
        """Of a folder."""
        return cls(store.runs(), store.failures(), timing)

    @property
    def runs(self) -> list[Run]:
        """All of them."""
        return [run for by_seed in self._runs.values() for run in by_seed.values()]

    @property
    def cells(self) -> list[Cell]:
        """Those of which there are runs, in the order of `lag_cells.WHOLE`."""
        found = {cell for cell, _ in self._runs}
        known = [cell for cell in lag_cells.WHOLE if cell in found]
        return known + sorted(found - set(known), key=lambda cell: cell.name)

    def arms(self, cell: Cell) -> list[str]:
        """Those of which a cell has runs, in order."""
        return [arm for arm in lag_cells.TITLES if (cell, arm) in self._runs]

    def seeds(self, cell: Cell, arm: str) -> list[int]:
        """Of a cell's arm, sorted."""
        return sorted(self._runs.get((cell, arm), {}))

    def mean(self, cell: Cell, arm: str, value: Value) -> Interval:
        """Over seeds."""
        return intervals.of_mean(self._values(cell, arm, value, self.seeds(cell, arm)))

    def ratio(self, cell: Cell, arm: str, baseline: str, value: Value) -> Interval | None:
        """Of an arm's runs to the baseline's of the same seeds; None if there are none."""
        both = set(self.seeds(cell, arm)) & set(self.seeds(cell, baseline))
        seeds = sorted(both)
        if not seeds:
            return None
        return intervals.of_ratio(
            self._values(cell, arm, value, seeds), self._values(cell, baseline, value, seeds)
        )

    def _values(self, cell: Cell, arm: str, value: Value, seeds: Sequence[int]) -> list[float]:
        by_seed = self._runs[cell, arm]
        return [value(by_seed[seed]) for seed in seeds]


def of(name: str) -> Value:
    """One of the numbers that a run has."""
    return lambda run: float(run[name])


def unscheduled_steps_per_s(run: Run) -> float:
    """Env steps per second if the environment took its mean time after each step, come what may.

    The environment's schedule makes up for what an EnvRunner takes for itself; this does not.
    """
    cell = Cell.parse(run["cell"])
    return cell.runners / (cell.step_s + float(run["own_ms"]) / 1e3)
