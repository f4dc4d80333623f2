"""Taps the staleness of every training batch in the learner, by Ray's own definition.

Ray logs `diff_num_grad_updates_vs_sampler_policy`, but hands out a window of it. Here it is noted
for each update, with what Ray does not tell: how it is spread within a batch, and what it is
made of.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from benchmarks.sleepy_env import CLOCK_PERIOD_S, MAX_RUNNERS, OWN, RUNNER, TIME

# As `ray.rllib.utils.metrics.WEIGHTS_SEQ_NO`, `ray.rllib.core.columns.Columns` and
# `ray.rllib.core.DEFAULT_MODULE_ID`: checked where the Algorithm is made.
SEQ_NO, LOSS_MASK, OBS, MODULE_ID = "weights_seq_no", "loss_mask", "obs", "default_policy"

_ATTRIBUTE = "_benchmark_lag_tap"


class LagTap:
    """Notes the lag of each batch that its learner trains on.

    The lag of a step, in gradient updates: the number of the update that trains on it, minus the
    number of the update that made the weights it was sampled with. It is the sum of

    - the acting lag: updates that were finished when the step was taken, and not in its weights;
    - the waiting lag: updates from then until the step was trained on.

    Only the first is about the way of the weights. The second is the rest of the fragment, the way
    to the learner, and whatever waits there.

    Args:
        learner: A `TorchLearner`; two of its methods are wrapped, on the object.
        timed: Whether observations are those of `SleepyEnv`. Without, only the lag is noted.
        clock: Seconds, the same clock that the environment reads.
    """

    def __init__(
        self, learner: Any, *, timed: bool = True, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.rows: list[dict[str, float]] = []
        self._learner = learner
        self._timed = timed
        self._clock = clock
        # When update 0, 1, ... was finished; the first weights were always there.
        self._finished = [float("-inf")]
        self._first_seq_no = int(learner._weights_seq_no)
        self._compute = learner._compute_off_policyness
        self._after = learner.after_gradient_based_update
        learner._compute_off_policyness = self._on_batch
        learner.after_gradient_based_update = self._on_updated

    def _on_batch(self, batch: Mapping[str, Any]) -> Any:
        if MODULE_ID in batch:
            self.rows.append(self._measure(batch[MODULE_ID]))
        return self._compute(batch)

    def _on_updated(self, *args: Any, **kwargs: Any) -> Any:
        result = self._after(*args, **kwargs)
        self._finished.append(self._clock())
        return result

    def _measure(self, batch: Mapping[str, Any]) -> dict[str, float]:
        now = self._clock()
        # Already counted up for this update, see `Learner.update`.
        update = int(self._learner._weights_seq_no)
        used = _unmasked(batch, SEQ_NO).astype(np.int64)
        lag = update - used
        row = {
            "at": now,
            "update": update,
            "steps": len(lag),
            "mean": float(lag.mean()),
            "p50": float(np.percentile(lag, 50)),
            "p90": float(np.percentile(lag, 90)),
            "max": float(lag.max()),
            "spread": float(lag.max() - lag.min()),
        }
        if self._timed:
            row.update(self._origins(now, update, used, _unmasked(batch, OBS)))
        return row

    def _origins(self, now: float, update: int, used: Any, seen: Any) -> dict[str, float]:
        """What a lag is made of, by when each step was taken."""
        acted = now - (now - seen[:, TIME].astype(np.float64) * CLOCK_PERIOD_S) % CLOCK_PERIOD_S
        finished = np.asarray(self._finished)
        newest = self._first_seq_no + np.searchsorted(finished, acted, side="right") - 1
        age = now - finished[np.clip(used - self._first_seq_no, 0, len(finished) - 1)]
        return {
            "runner": float(np.rint(seen[0, RUNNER] * MAX_RUNNERS)),
            "begun": float(acted.min()),
            "acting": float((newest - used).mean()),
            "waiting": float((update - newest).mean()),
            "seconds": float(age.mean()),
            "own_ms": float(seen[:, OWN].mean()) * 1e3,
        }


def install(learner: Any, timed: bool = True) -> None:
    """Begins to note."""
    setattr(learner, _ATTRIBUTE, LagTap(learner, timed=timed))


def read(learner: Any) -> list[dict[str, float]]:
    """What was noted so far, a row for each update."""
    tap: LagTap = getattr(learner, _ATTRIBUTE)
    return list(tap.rows)


def _unmasked(batch: Mapping[str, Any], column: str) -> Any:
    """A column's steps that count, as a numpy array."""
    values = _plain(batch[column])
    return values[_plain(batch[LOSS_MASK]).astype(bool)] if LOSS_MASK in batch else values


def _plain(tensor: Any) -> Any:
    return tensor.detach().cpu().numpy() if hasattr(tensor, "detach") else np.asarray(tensor)
