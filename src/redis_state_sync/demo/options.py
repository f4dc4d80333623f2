"""What the user asked the demo for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PLOT_NAME = "redis-state-sync-demo.png"
# Returns that a learner reaches well within the default time limits on two cores.
_TARGETS = {"CartPole-v1": 150.0}
_CORE_TARGET = 300.0


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to run.

    Args:
        env: Gymnasium's id; for `core`, what to call its own task.
        algo: ``appo``, ``impala`` or ``ppo``; for `core`, what to call its own method.
        seconds: Time limit of the training.
        target: Mean return to reach, or None to train until the time is over.
        url: An existing server, or None to start one.
        chaos: Whether to kill the server half-way.
        outage_s: Seconds for which it stays away.
        seed: Of the training.
        out: Where the plot goes.
        core: Without Ray and torch.
    """

    env: str
    algo: str
    seconds: float
    target: float | None
    url: str | None
    chaos: bool
    outage_s: float
    seed: int
    out: Path
    core: bool

    @property
    def title(self) -> str:
        """One line for headings."""
        return f"{self.algo.upper()} on {self.env}"


def default_target(env: str, *, core: bool) -> float | None:
    """The return to reach, where a good one is known."""
    return _CORE_TARGET if core else _TARGETS.get(env)
