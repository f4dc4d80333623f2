"""The run with RLlib: one Algorithm, two EnvRunners, and a watch on both."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from redis_state_sync.demo.options import Options
from redis_state_sync.demo.quiet import stderr_kept
from redis_state_sync.demo.session import Session
from redis_state_sync.demo.timeline import EpisodeWindow, Sample
from redis_state_sync.errors import SettingsError
from redis_state_sync.publisher import StatePublisher

# Read by Ray when it is imported: its C++ side writes to stderr past every Python logger.
os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

import gymnasium
import ray
from ray.rllib.utils.metrics import (
    ENV_RUNNER_RESULTS,
    EPISODE_RETURN_MEAN,
    LEARNER_RESULTS,
    NUM_ENV_STEPS_SAMPLED_LIFETIME,
    NUM_EPISODES,
)

from redis_state_sync.demo.rllib_configs import NUM_ENV_RUNNERS, make_config

_STALENESS = "diff_num_grad_updates_vs_sampler_policy"
_LOOK_EVERY_S = 0.5
_EPISODES = 30


def start_ray() -> None:
    """Starts a Ray of our own, quietly. A busy machine can miss Ray's start-up limit once."""
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    for attempt in (1, 2):
        try:
            ray.init(
                address="local",  # Not the cluster that RAY_ADDRESS may name.
                include_dashboard=False,
                num_cpus=NUM_ENV_RUNNERS + 1,
                object_store_memory=200_000_000,
                logging_level=logging.ERROR,
                log_to_driver=False,
            )
        except Exception:
            ray.shutdown()
            if attempt == 2:
                raise
        else:
            return


class RllibRun:
    """Trains with RLlib.

    Args:
        options: What the user asked for.
        url: Of the server.

    Raises:
        SettingsError: If the URL is wrong.
        StoreError: If the server can not be reached.
    """

    def __init__(self, options: Options, url: str) -> None:
        self._algorithm: Any = None
        try:
            gymnasium.spec(options.env)
        except gymnasium.error.Error as error:
            # Else it would be noticed by the EnvRunners, which Ray restarts again and again.
            raise SettingsError(f"--env {options.env}: {error}") from error
        try:
            config = make_config(options, url)
            with stderr_kept():
                start_ray()
                self._algorithm = config.build_algo()
            logging.getLogger("ray.rllib").setLevel(logging.ERROR)
            self._readers = _Readers(self._algorithm)
        except BaseException:
            self.close()
            raise
        self._results = _Results()

    @property
    def publisher(self) -> StatePublisher:
        """The learner's."""
        publisher: StatePublisher = self._algorithm.redis_state_sync.publisher
        return publisher

    def train(self, session: Session) -> None:
        """Trains on this thread while another one watches."""
        ended = threading.Event()
        watch = threading.Thread(
            target=self._watch, args=(session, ended), name="demo-watch", daemon=True
        )
        watch.start()
        try:
            while not session.done:
                self._results.update(self._algorithm.train())
        finally:
            ended.set()
            watch.join(timeout=5)

    def close(self) -> None:
        """Ends the Algorithm and Ray."""
        algorithm, self._algorithm = self._algorithm, None
        if algorithm is not None:
            with contextlib.suppress(Exception):  # Whatever state an interrupt left it in.
                algorithm.stop()
            with contextlib.suppress(OSError):
                Path(algorithm.logdir).rmdir()  # RLlib made it, and wrote nothing.
        ray.shutdown()

    def _watch(self, session: Session, ended: threading.Event) -> None:
        while not ended.wait(_LOOK_EVERY_S):
            session.tick(self._look(session))

    def _look(self, session: Session) -> Sample:
        publisher = self.publisher
        results, stats, last = self._results, publisher.stats, publisher.last_version
        healthy = publisher.healthy
        held = self._readers.held()
        stored = last.number if last else 0
        # While the server is down, each state replaces the one that waits: one more than dropped.
        given_out = stats.publishes + stats.dropped + (not healthy)
        return Sample(
            t=session.now,
            newest=max([stored, given_out, *(number or 0 for number in held)]),
            stored=stored,
            held=held,
            healthy=healthy,
            server_up=session.server_is_up(healthy),
            env_steps=results.env_steps,
            mean_return=results.window.mean,
            staleness=results.staleness,
            poll_s=results.times.get("poll_timer"),
            fetch_s=results.times.get("fetch_timer"),
            publish_s=stats.last_seconds or None,
            published=stats.publishes,
            dropped=stats.dropped,
            pushes=self._algorithm.redis_state_sync.num_pushes,
            failures={
                **{f"EnvRunners: {name}": count for name, count in dict(results.failures).items()},
                **{f"learner: {name}": count for name, count in dict(stats.failures).items()},
            },
        )


@dataclass
class _Results:
    """What the latest `Algorithm.train()` said; what it left out is as it was before."""

    env_steps: int = 0
    staleness: float | None = None
    window: EpisodeWindow = field(default_factory=lambda: EpisodeWindow(_EPISODES))
    times: dict[str, float] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)

    def update(self, result: Mapping[str, Any]) -> None:
        """Takes in one result."""
        runners = result.get(ENV_RUNNER_RESULTS, {})
        self.env_steps = int(_finite(runners, NUM_ENV_STEPS_SAMPLED_LIFETIME) or self.env_steps)
        episodes, mean = _finite(runners, NUM_EPISODES), _finite(runners, EPISODE_RETURN_MEAN)
        if episodes is not None and mean is not None:
            self.window.add(int(episodes), mean)
        ours = runners.get("redis_state", {})
        for name in ("poll_timer", "fetch_timer"):
            seconds = _finite(ours, name)
            if seconds is not None:
                self.times[name] = seconds
        for name, count in ours.get("num_failures_lifetime", {}).items():
            self.failures[name] = int(count)
        for module in result.get(LEARNER_RESULTS, {}).values():
            value = _finite(module, _STALENESS) if isinstance(module, Mapping) else None
            self.staleness = self.staleness if value is None else value


def _finite(results: Mapping[str, Any], name: str) -> float | None:
    """RLlib leaves out what was not logged, or puts NaN for it."""
    value = float(results.get(name, math.nan))
    return value if math.isfinite(value) else None


class _Readers:
    """Asks the EnvRunners which version they act with, without waiting for a busy one."""

    def __init__(self, algorithm: Any) -> None:
        self._actors = algorithm.env_runner_group.foreach_env_runner(
            _own_handle, local_env_runner=False
        )
        self._asked: list[Any] = [None] * len(self._actors)
        self._known: list[int | None] = [None] * len(self._actors)

    def held(self) -> tuple[int | None, ...]:
        """Version numbers, each as of the latest answer."""
        for i, actor in enumerate(self._actors):
            if self._asked[i] is None:
                self._asked[i] = actor.apply.remote(_held)
        ready, _ = ray.wait(self._asked, num_returns=len(self._asked), timeout=_LOOK_EVERY_S)
        for i, reference in enumerate(self._asked):
            if reference in ready:
                self._asked[i] = None
                with contextlib.suppress(ray.exceptions.RayError):  # Ray restarts it.
                    self._known[i] = ray.get(reference)
        return tuple(self._known)


def _own_handle(_runner: Any) -> Any:
    return ray.get_runtime_context().current_actor


def _held(runner: Any) -> int | None:
    version = runner.redis_state_version
    return None if version is None else int(version.number)
