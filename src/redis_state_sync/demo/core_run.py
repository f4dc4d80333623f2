"""The run without Ray and torch: a learner in numpy, and three reader processes."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import signal
import time
from collections import Counter
from typing import Any

import numpy as np

from redis_state_sync import StatePublisher, Version, open_store
from redis_state_sync.demo.core_reader import POLICY, Report, run_reader
from redis_state_sync.demo.core_task import Policy
from redis_state_sync.demo.options import Options
from redis_state_sync.demo.session import Session
from redis_state_sync.demo.timeline import EpisodeWindow, Sample
from redis_state_sync.endpoint import parse_url
from redis_state_sync.errors import SettingsError

_READERS = 3
_BATCH = 6  # Reports for one update of the policy.
_LOOK_EVERY_S = 0.1
_EPISODES = 200


class CoreRun:
    """Trains in this process on what the readers report.

    Args:
        options: What the user asked for.
        url: Of the server.

    Raises:
        SettingsError: If the URL is wrong.
        StoreError: If the server can not be reached.
    """

    def __init__(self, options: Options, url: str) -> None:
        if parse_url(url).scheme == "memory":
            raise SettingsError("memory:// lives in one process, and the demo's readers are others")
        self._policy = Policy.initial()
        self._publisher = StatePublisher(
            open_store(url), f"demo-core/{os.getpid()}-{time.time_ns()}", ttl_s=600
        )
        # Not fork: the publisher's thread and its connection are not for children.
        context = multiprocessing.get_context("spawn")
        self._reports: Any = context.Queue()
        self._stop: Any = context.Event()
        self._latest: dict[int, Report] = {}
        self._window = EpisodeWindow(_EPISODES)
        self._env_steps = 0
        self._newest = self._publish()
        self._readers = [
            context.Process(
                target=run_reader,
                args=(
                    reader,
                    url,
                    self._publisher.keys.namespace,
                    self._publisher.writer.id,
                    options.seed,
                    self._reports,
                    self._stop,
                ),
                name=f"demo-reader-{reader}",
                daemon=True,
            )
            for reader in range(_READERS)
        ]
        # Ctrl-C is for the learner, which ends the readers: they inherit that they ignore it, so
        # that it does not hit them while they are still importing.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            for process in self._readers:
                process.start()
        finally:
            signal.signal(signal.SIGINT, before)

    @property
    def publisher(self) -> StatePublisher:
        """The learner's."""
        return self._publisher

    def train(self, session: Session) -> None:
        """Learns from the readers' reports, and publishes after each update."""
        batch: list[Report] = []
        next_look = 0.0
        while not session.done:
            with contextlib.suppress(queue.Empty):
                batch.append(self._take(self._reports.get(timeout=_LOOK_EVERY_S)))
            if len(batch) >= _BATCH:
                self._policy = self._policy.improved(
                    np.concatenate([report.weights for report in batch]),
                    np.concatenate([report.returns for report in batch]),
                )
                self._newest = self._publish()
                batch = []
            if session.now >= next_look:
                next_look = session.now + _LOOK_EVERY_S
                session.tick(self._look(session))

    def close(self) -> None:
        """Ends the readers and the publisher."""
        self._stop.set()
        for process in self._readers:
            process.join(timeout=2)
            if process.is_alive():
                process.kill()
                process.join()
        # What is left in the queue is for nobody; without this, leaving would wait for its thread.
        self._reports.cancel_join_thread()
        self._reports.close()
        self._publisher.close(timeout=0.5)

    def _publish(self) -> Version:
        state = {"mean": self._policy.mean, "std": self._policy.std}
        return self._publisher.publish({POLICY: state}).version

    def _take(self, report: Report) -> Report:
        self._latest[report.reader] = report
        self._window.add(len(report.returns), float(report.returns.mean()))
        self._env_steps += int(report.returns.sum())
        return report

    def _look(self, session: Session) -> Sample:
        publisher, latest = self._publisher, self._latest
        last, healthy = publisher.last_version, publisher.healthy
        failures: Counter[str] = Counter()
        for report in latest.values():
            for category, count in report.failures.items():
                failures[f"readers: {category}"] += count
        for category, count in dict(publisher.stats.failures).items():
            failures[f"learner: {category}"] += count
        held = tuple(latest[i].number if i in latest else None for i in range(_READERS))
        fetches = [r.fetch_s for r in latest.values() if r.fetch_s is not None]
        return Sample(
            t=session.now,
            newest=self._newest.number,
            stored=last.number if last else 0,
            held=held,
            healthy=healthy,
            server_up=session.server_is_up(healthy),
            env_steps=self._env_steps,
            mean_return=self._window.mean,
            poll_s=float(np.mean([r.poll_s for r in latest.values()])) if latest else None,
            fetch_s=float(np.mean(fetches)) if fetches else None,
            publish_s=publisher.stats.last_seconds or None,
            published=publisher.stats.publishes,
            dropped=publisher.stats.dropped,
            failures=dict(failures),
        )
