"""Has an asynchronous learner hand out the state of the update that it waited for.

`IMPALALearner.update` (Ray 2.60, APPO's too) takes a state from its learner thread, then waits for
the thread to end an update, and returns the state that it took before: the EnvRunners get weights
that are one update old when they are sent. With these in place it returns those of the update that
has just ended.
"""

from __future__ import annotations

import contextlib
import queue
from typing import Any


def hand_out_newest_state(learner: Any) -> None:
    """Installs it in a learner, if it is one that works like this; any other stays as it is.

    Args:
        learner: A built `Learner`, in its own process, between two updates.
    """
    parts = ("_agg_event", "_learner_state_queue", "_learner_state_lock", "_learner_state")
    if all(hasattr(learner, part) for part in parts):
        learner._agg_event = _EndOfUpdate(learner)


class _EndOfUpdate:
    """Stands in for the event that says that an update has ended: its state is then there."""

    def __init__(self, learner: Any) -> None:
        self._learner = learner
        self._event = learner._agg_event

    def wait(self, timeout: float | None = None) -> bool:
        """As the event's; then the newest state is the one to return."""
        ended = bool(self._event.wait(timeout))
        learner = self._learner
        # Empty: of several learners the first one alone gives states.
        with learner._learner_state_lock, contextlib.suppress(queue.Empty):
            learner._learner_state = learner._learner_state_queue.get_nowait()
        return ended

    def set(self) -> None:
        """As the event's."""
        self._event.set()

    def clear(self) -> None:
        """As the event's."""
        self._event.clear()

    def is_set(self) -> bool:
        """As the event's."""
        return bool(self._event.is_set())
