"""Publish: how long the training thread is held up, until when it is stored, and what it slows."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks import arms
from benchmarks.lab import Lab
from benchmarks.measures import Measure
from benchmarks.options import Options
from benchmarks.readers import COMPONENT
from benchmarks.rounds import Turns, Watch
from benchmarks.states import State, change, label, make_state
from redis_state_sync import StatePublisher

HELD, STORED = "training thread held", "until stored"
STEPS = "training steps beside publishing"
ALONE = "alone"
_HISTORY = 2
# Publishes per second beside the training steps: the same in all arms, so that none is slowed less
# because it publishes less.
_EVERY_S = 0.5
_MATRIX = 384


def run(lab: Lab, options: Options, watch: Watch) -> list[Measure]:
    """All cases of the section."""
    measures: list[Measure] = []
    for nbytes in options.published:
        case = _Case(lab, nbytes)
        try:
            measures += case.times(options, watch)
            measures.append(case.steps(options, watch))
        finally:
            case.close()
        lab.empty()
    return measures


class _Case:
    def __init__(self, lab: Lab, nbytes: int) -> None:
        self._lab = lab
        self._case = label(nbytes)
        self._state: State = make_state(nbytes)
        self._publishers: dict[str, StatePublisher] = {
            arm: arms.publisher(
                arm, lab.places, f"benchmark/publish/{nbytes}/{arm}", history=_HISTORY
            )
            for arm in (arms.TCP, arms.UNIX, arms.NODE)
            if arms.offered(arm)
        }

    def close(self) -> None:
        for publisher in self._publishers.values():
            publisher.close()

    def times(self, options: Options, watch: Watch) -> list[Measure]:
        held, stored = Measure(HELD, self._case, "ms"), Measure(STORED, self._case, "ms")

        def turn(arm: str) -> None:
            change(self._state)
            started = time.perf_counter()
            wait = self._publish(arm)
            returned = time.perf_counter()
            wait()
            held.add(arm, 1e3 * (returned - started))
            stored.add(arm, 1e3 * (time.perf_counter() - started))
            self._settle()

        Turns([arms.RAY, *self._publishers], options.rounds).run(
            turn, watch, f"publish, {self._case}", [held, stored]
        )
        return [held, stored]

    def steps(self, options: Options, watch: Watch) -> Measure:
        """Steps per second of a learner, publishing included, on one thread of torch."""
        measure = Measure(STEPS, self._case, "steps/s", more_is_better=True)
        before = torch.get_num_threads()
        torch.set_num_threads(1)  # The other core is for what happens in the background.

        def turn(arm: str) -> None:
            measure.add(arm, self._train(arm, options.training_seconds))
            self._settle()

        try:
            Turns([ALONE, arms.RAY, *self._publishers], options.rounds).run(
                turn, watch, f"publish beside training, {self._case}", [measure]
            )
        finally:
            torch.set_num_threads(before)
        return measure

    def _train(self, arm: str, seconds: float) -> float:
        weights = torch.ones(_MATRIX, _MATRIX)
        steps, started = 0, time.perf_counter()
        due = started
        while (now := time.perf_counter()) < started + seconds:
            if now >= due:
                due += _EVERY_S
                # Alone, too: it is the optimiser's work, not the publisher's.
                change(self._state)
                if arm != ALONE:
                    self._publish(arm)
            weights = (weights @ weights) / _MATRIX
            steps += 1
        return steps / (time.perf_counter() - started)

    def _publish(self, arm: str) -> Callable[[], Any]:
        if arm == arms.RAY:
            import ray

            pushed = self._lab.ray.push(self._state)
            return lambda: ray.get(pushed)
        publication = self._publishers[arm].publish({COMPONENT: self._state})
        return lambda: publication.wait(60)

    def _settle(self) -> None:
        """What goes on in the background of one arm is not to slow the next one's turn."""
        for publisher in self._publishers.values():
            publisher.flush(60)
