"""Has an asynchronous learner hand out the state of an update as soon as that has ended.

`IMPALALearner.update` (Ray 2.60, APPO's too) takes a state from its learner thread, then waits for
the thread to end an update, and returns the state that it took before: the EnvRunners get weights
that are one update old when they are sent. With `hand_out_newest_state` it returns those of the
update that has just ended.

The result of a learner *actor* is looked at when the next batch is sent to it, which is one more
update. `NewestState` asks for the state alone, and looks for it before.
"""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable
from typing import Any

import ray
from ray.rllib.utils.metrics import WEIGHTS_SEQ_NO


def hand_out_newest_state(learner: Any) -> None:
    """Installs it in a learner, if it is one that works like this; any other stays as it is.

    Args:
        learner: A built `Learner`, in its own process, between two updates.
    """
    if _gives_states(learner):
        learner._agg_event = _EndOfUpdate(learner)


def _gives_states(learner: Any) -> bool:
    parts = ("_agg_event", "_learner_state_queue", "_learner_state_lock", "_learner_state")
    return all(hasattr(learner, part) for part in parts)


class _EndOfUpdate:
    """Stands in for the event that says that an update has ended: its state is then there."""

    def __init__(self, learner: Any) -> None:
        self._learner = learner
        self._event = learner._agg_event

    def wait(self, timeout: float | None = None) -> bool:
        """As the event's; then the newest state is the one to return."""
        ended = bool(self._event.wait(timeout))
        _take(self._learner)
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


def _take(learner: Any) -> Any:
    # Empty: of several learners the first one alone gives states.
    with learner._learner_state_lock, contextlib.suppress(queue.Empty):
        learner._learner_state = learner._learner_state_queue.get_nowait()
    return learner._learner_state


def _newest(learner: Any) -> Any:
    return _take(learner) if _gives_states(learner) else None


class NewestState:
    """The state that a learner actor had after its last update. For the training thread alone.

    Args:
        learner_group: An asynchronous algorithm's LearnerGroup.
        deliver: Is given each newer state: weights, possibly by ObjectRef, and `WEIGHTS_SEQ_NO`.
    """

    def __init__(self, learner_group: Any, deliver: Callable[[dict[str, Any]], None]) -> None:
        self._group = learner_group
        self._update = learner_group.update
        self._deliver = deliver
        self._reply: Any = None
        self._newest = -1

    def install(self) -> None:
        """Asks from now on, after each batch that is sent to the actors."""
        if not self._group.is_local:
            self._group.update = self.update

    def update(self, *args: Any, **kwargs: Any) -> Any:
        """As the LearnerGroup's; then the first actor is asked, whose turn that is after it."""
        results = self._update(*args, **kwargs)
        actors = getattr(self._group, "_workers", None)
        if self._reply is None and actors:
            self._reply = actors[0].apply.remote(_newest)
        return results

    def look(self) -> None:
        """Delivers what has come, if something has."""
        if self._reply is None or not ray.wait([self._reply], timeout=0)[0]:
            return
        reply, self._reply = self._reply, None
        try:
            state = ray.get(reply)
        except ray.exceptions.RayError:
            return  # RLlib's next call of this actor meets the same, and says so.
        if state is not None and state[WEIGHTS_SEQ_NO] > self._newest:
            self._newest = state[WEIGHTS_SEQ_NO]
            self._deliver(dict(state))
