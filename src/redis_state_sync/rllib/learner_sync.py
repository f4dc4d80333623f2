"""The learner side: what RLlib would push to its EnvRunners is published instead."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from typing import Any

import ray
from ray.rllib.core import COMPONENT_LEARNER, COMPONENT_RL_MODULE
from ray.rllib.utils.metrics import (
    ENV_RUNNER_RESULTS,
    NUM_ENV_STEPS_SAMPLED_LIFETIME,
    WEIGHTS_SEQ_NO,
)

from redis_state_sync import components as names
from redis_state_sync.errors import PublishTimeoutError, StoreError
from redis_state_sync.events import Pushed, notify
from redis_state_sync.keyring import find_keyring
from redis_state_sync.publisher import StatePublisher
from redis_state_sync.rllib import resuming
from redis_state_sync.rllib.env_runner_groups import groups_of, runner_nodes
from redis_state_sync.rllib.env_runners import PUSHED_VERSION
from redis_state_sync.rllib.group_hooks import GroupHooks
from redis_state_sync.rllib.identity import in_background, namespace_of, writer_id_of
from redis_state_sync.rllib.learner_hooks import account_for_staleness
from redis_state_sync.rllib.metrics import learner_results
from redis_state_sync.rllib.newest_state import NewestState, hand_out_newest_state
from redis_state_sync.rllib.ray_metrics import RayMetrics
from redis_state_sync.rllib.states import (
    CONNECTORS,
    from_components,
    modules_in,
    resolved,
    to_components,
)
from redis_state_sync.rllib.stores import check_reach, open_rllib_store, start_embedded
from redis_state_sync.settings import Settings
from redis_state_sync.store import Store
from redis_state_sync.version import Version

logger = logging.getLogger("redis_state_sync")
# Ray shows what its own loggers say at INFO, and the driver's root logger does not.
start_logger = logging.getLogger("ray.redis_state_sync")

Push = Callable[[Any], Any]


class LearnerSync:
    """Publishes for one Algorithm.

    Asynchronous algorithms publish in the background while they train. Everything else waits
    until the store holds the version: synchronous algorithms, whose next `sample()` would be
    off-policy, and every sync outside of `training_step` (restoring, evaluating, adding modules).

    Args:
        algorithm: A set-up Algorithm whose EnvRunners have the mixin.
        settings: See `Settings`.

    Raises:
        SettingsError: If the store can not work for this Algorithm.
        StoreError: If the store can not be reached, or refuses.
        ApplyError: If it is to `resume`, and what is published does not fit.
        EncodeError: If a connector's or module's state can not be published.
    """

    def __init__(self, algorithm: Any, settings: Settings) -> None:
        self._algorithm = algorithm
        self._settings = settings
        self._multi_agent = bool(algorithm.config.is_multi_agent)
        self._async = in_background(settings, algorithm.config)
        self._training_thread: int | None = None
        self._lock = threading.Lock()
        # The latest of every component, what a push sends: arrays in Ray's object store.
        self._latest: dict[str, Any] = {}
        self._latest_seq_no: int | None = None
        self.num_pushes = 0
        groups = groups_of(algorithm)
        check_reach(settings, **runner_nodes(groups))
        writer_id = writer_id_of(algorithm.logdir)
        namespace = namespace_of(settings, algorithm.logdir)
        self._observers = (RayMetrics(namespace, "learner"),)
        self._server = start_embedded(settings, writer_id)
        try:
            store = open_rllib_store(settings, writer_id)
            if settings.resume:  # Before the one that is at work is refused in vain.
                self._check_predecessor(store, namespace)
            self.publisher = StatePublisher(
                store,
                namespace,
                writer_id=writer_id,
                history=settings.history,
                ttl_s=settings.ttl_s,
                connect_timeout_s=settings.connect_timeout_s,
                transfer_timeout_s=settings.transfer_timeout_s,
                keyring=find_keyring(required=settings.signed),
                max_state_bytes=settings.max_state_bytes,
                node_cache_bytes=settings.node_cache_bytes,
                observers=self._observers,
            )
            try:
                self._log_start()
                if settings.resume:
                    self._resume()
                self.deliver(self._initial_state(), lambda _: None)
            except BaseException:
                self.publisher.close(timeout=0)
                raise
        except BaseException:
            self._stop_server()
            raise
        self._attach(groups)

    def deliver(self, state: Any, push: Push, *, evaluation: bool = False) -> None:
        """Publishes a state that RLlib wants its EnvRunners to have.

        Args:
            state: As for `EnvRunner.set_state`, or an ObjectRef of it.
            push: Sends a state by Ray's own way instead.
            evaluation: The state is for evaluation: announce nothing if it is all published.

        Raises:
            StalePublisherError: If another learner took over the namespace.
            EncodeError: If a value can not be published.
            StoreError: If the store is down, this call waits, and `fallback_to_push` is off.
            PublishTimeoutError: Likewise, if it does not answer.
        """
        components, seq_no = to_components(resolved(state), multi_agent=self._multi_agent)
        with self._lock:
            if self._in_training_step() and self._is_older(seq_no):
                # A learner actor's reply that took longer than `NewestState`.
                components = {n: c for n, c in components.items() if not names.is_weights(n)}
                seq_no = None
            if not components:
                return
            removed = self._removed_modules()
            for name in removed:
                del self._latest[name]
            self._latest.update(components)
            if seq_no is not None:
                self._latest_seq_no = seq_no
            publication = self.publisher.publish(
                components, weights_seq_no=seq_no, remove=removed, only_if_changed=evaluation
            )
        in_background = self._in_training_step()
        fallback = self._settings.fallback_to_push
        if not self.publisher.healthy and fallback:
            self._push(publication.version, push)
        elif not in_background:
            try:
                publication.wait(self._settings.publish_timeout_s, fail_fast=fallback)
            except (StoreError, PublishTimeoutError):
                if not fallback:
                    raise
                self._push(publication.version, push)

    def iteration_ends(self) -> None:
        """Has the idle EnvRunners of a synchronous algorithm look for the newest version now."""
        if not self._async:
            self._training_hooks.ask_to_refresh()

    def results(self) -> dict[str, Any]:
        """What ``result["redis_state"]`` holds, see `learner_results`."""
        return learner_results(self.publisher, self.num_pushes)

    def close(self) -> None:
        """Stores what is still waiting, ends the publisher, and the embedded server if any."""
        try:
            self.publisher.close()
        finally:
            self._stop_server()

    def _in_training_step(self) -> bool:
        """Whether an asynchronous algorithm calls from its `training_step`."""
        return self._async and self._training_thread == threading.get_ident()

    def _is_older(self, seq_no: int | None) -> bool:
        latest = self._latest_seq_no
        return seq_no is not None and latest is not None and seq_no < latest

    def _removed_modules(self) -> list[str]:
        """Components of modules that the Algorithm has no more, see `Algorithm.remove_module`."""
        if not self._multi_agent:
            return []
        modules = modules_in(self._latest)
        return [modules[mid] for mid in modules if mid not in self._algorithm.config.policies]

    def _stop_server(self) -> None:
        if self._server is not None:
            self._server.stop()

    def _push(self, version: Version, push: Push) -> None:
        """Sends everything that the version comprises by Ray's own way, labelled with it."""
        with self._lock:
            state = from_components(self._latest, self._latest_seq_no)
        self.num_pushes += 1
        notify(self._observers, Pushed(version))
        push(ray.put({**state, PUSHED_VERSION: str(version)}))

    def _check_predecessor(self, store: Store, namespace: str) -> None:
        snapshot = resuming.newest(store, namespace, self._settings)
        if snapshot is not None:
            resuming.check(self._algorithm.learner_group, self._connector_states(), snapshot)

    def _resume(self) -> None:
        """Takes what is published over. Nobody else can publish any more: it is the last."""
        publisher = self.publisher
        snapshot = resuming.newest(publisher.store, publisher.keys.namespace, self._settings)
        if snapshot is None:
            start_logger.info("nothing to resume from: it begins with weights of its own")
            return
        # Another one may have been at work since.
        resuming.check(self._algorithm.learner_group, self._connector_states(), snapshot)
        resuming.give(self._algorithm, snapshot)
        start_logger.info("it goes on from version %s", snapshot.version)

    def _initial_state(self) -> dict[str, Any]:
        algorithm = self._algorithm
        learner_state = algorithm.learner_group.get_state(
            components=f"{COMPONENT_LEARNER}/{COMPONENT_RL_MODULE}", inference_only=True
        )[COMPONENT_LEARNER]
        steps = algorithm.metrics.peek(
            (ENV_RUNNER_RESULTS, NUM_ENV_STEPS_SAMPLED_LIFETIME), default=0
        )
        return {
            COMPONENT_RL_MODULE: learner_state[COMPONENT_RL_MODULE],
            WEIGHTS_SEQ_NO: learner_state.get(WEIGHTS_SEQ_NO, 0),
            NUM_ENV_STEPS_SAMPLED_LIFETIME: int(steps),
            **self._connector_states(),
        }

    def _connector_states(self) -> dict[str, Any]:
        """The common connector state, which Ray keeps in the local EnvRunner or the Algorithm."""
        local = self._algorithm.env_runner
        if local is not None:
            state: dict[str, Any] = local.get_state(components=list(CONNECTORS))
            return {name: state[name] for name in CONNECTORS if name in state}
        pipelines = (
            self._algorithm.env_to_module_connector,
            self._algorithm.module_to_env_connector,
        )
        return {
            name: pipeline.get_state()
            for name, pipeline in zip(CONNECTORS, pipelines, strict=True)
            if pipeline is not None
        }

    def _attach(self, groups: list[Any]) -> None:
        algorithm = self._algorithm
        for group in groups:
            evaluation = group is algorithm.eval_env_runner_group
            hooks = GroupHooks(self, group, evaluation, self._connector_states)
            hooks.install()
            if not evaluation:
                self._training_hooks = hooks
        _hook_learners(algorithm.learner_group)
        local = algorithm.env_runner
        if local is not None:
            local._redis_state_local_feed = self._feed_local
        newest_state = NewestState(algorithm.learner_group, self._deliver_early)
        if self._async:
            newest_state.install()
        training_step = algorithm.training_step

        def training_step_marked() -> Any:
            self._training_thread = threading.get_ident()
            try:
                newest_state.look()
                return training_step()
            finally:
                self._training_thread = None

        algorithm.training_step = training_step_marked
        # For an Algorithm that is dropped, or a driver that ends, without stop().
        server, publisher = self._server, self.publisher
        self._finalizer = weakref.finalize(algorithm, _close, publisher, server)

    def _deliver_early(self, state: dict[str, Any]) -> None:
        # While the store is down, Ray pushes what its own sync brings, a little later.
        if self.publisher.healthy:
            self.deliver(state, lambda _: None)

    def _feed_local(self) -> None:
        """Gives the local EnvRunner newer weights before it samples.

        RLlib samples locally when no remote EnvRunner is healthy, but updates only the local
        connectors while some are.
        """
        local = self._algorithm.env_runner
        with self._lock:
            seq_no = self._latest_seq_no
            state = from_components(self._latest, seq_no)
        if seq_no is not None and seq_no > local._weights_seq_no:
            local.set_state(
                {COMPONENT_RL_MODULE: state[COMPONENT_RL_MODULE], WEIGHTS_SEQ_NO: seq_no}
            )

    def _log_start(self) -> None:
        publisher = self.publisher
        start_logger.info(
            "redis_state_sync publishes to %s (%s), namespace %r, generation %d, from version "
            "%d-1 on, "
            "%s",
            publisher.store.describe(),
            publisher.store.server_facts(timeout=self._settings.connect_timeout_s),
            publisher.keys.namespace,
            publisher.generation,
            publisher.generation,
            "in the background" if self._async else "before each sync returns",
        )


def _hook_learners(group: Any) -> None:
    for hook, without in (
        (account_for_staleness, "does not say how stale its batches are"),
        (hand_out_newest_state, "hands out states that are one update old"),
    ):
        for result in group.foreach_learner(hook):
            if not result.ok:
                logger.warning("a Learner %s: %s", without, result.get())


def _close(publisher: StatePublisher, server: Any) -> None:
    try:
        publisher.close(timeout=0.5)
    finally:
        if server is not None:
            server.stop()
