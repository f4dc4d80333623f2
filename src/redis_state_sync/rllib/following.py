"""What the EnvRunner of a follower does besides following: it never acts with weights of its own.

A learner's EnvRunner that has no version yet acts with what RLlib gave it, which comes from the
learner beside it. In a follower's job RLlib has random weights to give: an EnvRunner refuses them,
waits for its first version, and raises if none comes.
"""

from __future__ import annotations

import copy
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from redis_state_sync.errors import ApplyError, FirstVersionError
from redis_state_sync.rllib.apply import apply_snapshot, apply_weights
from redis_state_sync.rllib.fit import check_connectors, check_modules, check_names
from redis_state_sync.rllib.states import CONNECTORS
from redis_state_sync.rllib.weights import live_modules
from redis_state_sync.snapshot import Snapshot
from redis_state_sync.subscriber import StateSubscriber
from redis_state_sync.version import Version

# Ray shows what its own loggers say at INFO.
logger = logging.getLogger("ray.redis_state_sync")

SetState = Callable[[dict[str, Any]], None]

_PAUSE_S = 0.05
# More than one evaluation acts with, unless versions come faster than it samples.
_REMEMBERED = 256


class Following:
    """The part of one EnvRunner. Not for several threads.

    Args:
        runner: The EnvRunner.
        set_state: Its `set_state`, as RLlib implements it.
        subscriber: Its reader.
        first_version_timeout_s: See `Settings`.
        clock: Monotonic seconds; replaceable in tests.
    """

    def __init__(
        self,
        runner: Any,
        set_state: SetState,
        subscriber: StateSubscriber,
        first_version_timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runner = runner
        self._set_state = set_state
        self._subscriber = subscriber
        self._timeout_s = first_version_timeout_s
        self._clock = clock
        # Why the newest version was not applied, if it was not.
        self._misfit: str | None = None
        # The modules that have published weights, and what was published beside these.
        self._modules: Mapping[str, Any] = {}
        self._connectors: dict[str, Any] = {}
        self._checked: int | None = None
        self._kept = False
        self._acted: deque[Version] = deque(maxlen=_REMEMBERED)

    def refresh(self, *, limits: bool) -> None:
        """Makes the EnvRunner have a published version, whole: the newest, unless it `keep`s one.

        Connectors are set back to their published states where there is nothing newer: a filter
        that acts goes on collecting, and nobody merges what a follower's collected.

        Args:
            limits: Whether limits of staleness apply.

        Raises:
            FirstVersionError: If there is none, and none came in time.
            ApplyError: If there is none, and the newest does not fit.
            StaleStateError: If the version held is staler than the settings allow.
        """
        subscriber = self._subscriber
        if subscriber.held is not None and dict(live_modules(self._runner)) != self._modules:
            # Modules that were added, or made anew, have random weights.
            subscriber.forget()
            self._checked = None
        newer = None
        if subscriber.held is None or not self._kept:
            newer = subscriber.refresh(self._apply, limits=limits)
        if subscriber.held is None:
            self._wait()
        elif newer is None and self._connectors:
            self._set_state(copy.deepcopy(self._connectors))

    def refresh_in_flight(self) -> bool:
        """Applies newer weights within a `sample()`. Returns whether there were some."""
        if self._kept:
            return False
        newer = self._subscriber.refresh_in_flight(self._apply_weights)
        if newer is not None:
            self.acts()
        return newer is not None

    def keep(self) -> None:
        """Stay with the version that is held, until `release`."""
        self._kept = True
        self._acted.clear()

    def release(self) -> list[Version]:
        """Follow again. Returns the versions that acted since `keep`, in order."""
        self._kept = False
        acted = list(self._acted)
        self._acted.clear()
        return acted

    def acts(self) -> None:
        """The EnvRunner is about to act with what it holds."""
        held = self._subscriber.held
        if held is not None and (not self._acted or self._acted[-1] != held):
            self._acted.append(held)

    def _apply(self, snapshot: Snapshot) -> None:
        runner = self._runner
        connectors = {name: snapshot[name] for name in CONNECTORS if name in snapshot}
        try:
            self._check(snapshot)
            check_connectors(runner, snapshot, connectors)
            apply_snapshot(runner, self._set_state, snapshot)
        except ApplyError as error:
            self._misfit = str(error)  # Not the error itself: its traceback has the snapshot.
            raise
        self._misfit = None
        self._modules = dict(live_modules(runner))
        self._connectors = connectors

    def _apply_weights(self, snapshot: Snapshot) -> None:
        self._check(snapshot)
        apply_weights(self._runner, self._set_state, snapshot)

    def _check(self, snapshot: Snapshot) -> None:
        check_modules(self._runner, snapshot)
        # A learner does not change what its modules are made of, and its successor might.
        generation = snapshot.version.generation
        if self._checked != generation:
            check_names(self._runner, snapshot)
            self._checked = generation

    def _wait(self) -> None:
        subscriber = self._subscriber
        where = f"namespace {subscriber.keys.namespace!r} at {subscriber.store.describe()}"
        deadline = self._clock() + self._timeout_s
        waits = False
        while subscriber.held is None:
            if self._misfit is not None:
                raise ApplyError(self._misfit)
            if self._clock() >= deadline:
                raise FirstVersionError(
                    f"a follower got no version within {self._timeout_s:g} s "
                    f"(first_version_timeout_s): {where}. {self._remedy()}"
                )
            if not waits:
                waits = True
                logger.info(
                    "a follower waits up to %g s for a version to act with: %s",
                    self._timeout_s,
                    where,
                )
            time.sleep(_PAUSE_S)
            subscriber.refresh(self._apply, limits=False)

    def _remedy(self) -> str:
        if self._subscriber.polled_in_vain:
            return (
                "Nothing was published there: start the learner, with the same URL and namespace "
                "('redis-state-sync list' shows those that hold something)"
            )
        return (
            "The store did not answer, its learner has not published yet, or what it holds could "
            "not be used: the warnings above say so, and 'redis-state-sync status' and 'doctor'"
        )
