"""A reader process of the demo without Ray: plays with the newest policy and reports."""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from redis_state_sync import Snapshot, StateSubscriber, open_store
from redis_state_sync.demo.core_task import Array, Policy, play
from redis_state_sync.events import Event, Failed, Fetched, Polled

POLICY = "rl_module/policy"
_EPISODES = 8
_LEAST_SECONDS = 0.06  # Leaves the CPU some rest, and the viewer something to see.


@dataclass(frozen=True, slots=True)
class Report:
    """What a reader did with one version.

    Args:
        reader: Which one.
        number: Of the version that it acted with.
        weights: ``(episodes, 4)``.
        returns: ``(episodes,)``.
        poll_s: What the latest poll cost.
        fetch_s: What the latest fetch cost; None before the first.
        failures: By category, so far.
    """

    reader: int
    number: int
    weights: Array
    returns: Array
    poll_s: float
    fetch_s: float | None
    failures: dict[str, int]


class _Costs:
    """An observer: remembers what polls and fetches cost."""

    def __init__(self) -> None:
        self.poll_s = 0.0
        self.fetch_s: float | None = None
        self.failures: Counter[str] = Counter()

    def __call__(self, event: Event, /) -> None:
        match event:
            case Polled(seconds=seconds):
                self.poll_s = seconds
            case Fetched(seconds=seconds):
                self.fetch_s = seconds
            case Failed(category=category):
                self.failures[category] += 1


def run_reader(
    reader: int, url: str, namespace: str, writer: str, seed: int, reports: Any, stop: Any
) -> None:
    """Plays until told to stop, or until the learner's process is gone.

    Args:
        reader: Its number.
        url: Of the server.
        namespace: Where the learner publishes.
        writer: The learner's writer id.
        seed: For its policies and initial states.
        reports: A queue for `Report`.
        stop: An event.
    """
    logging.getLogger("redis_state_sync").setLevel(logging.ERROR)  # Failures are in the report.
    parent, rng, costs = os.getppid(), np.random.default_rng((seed, reader)), _Costs()
    policy = Policy.initial()

    def load(snapshot: Snapshot) -> None:
        nonlocal policy
        policy = Policy(**snapshot[POLICY])

    subscriber = StateSubscriber(
        open_store(url), namespace, writer=writer, name=f"reader_{reader}", observers=(costs,)
    )
    while not stop.is_set() and os.getppid() == parent:
        started = time.monotonic()
        subscriber.refresh(load)
        weights = policy.sample(_EPISODES, rng)
        reports.put(
            Report(
                reader,
                subscriber.held.number if subscriber.held else 0,
                weights,
                play(weights, rng),
                costs.poll_s,
                costs.fetch_s,
                dict(costs.failures),
            )
        )
        stop.wait(max(0.0, _LEAST_SECONDS - (time.monotonic() - started)))
    subscriber.close()
