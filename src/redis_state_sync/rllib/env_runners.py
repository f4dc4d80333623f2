"""The EnvRunner side: polls at the top of every `sample()`, and in flight if it is told to."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ray.rllib.core import COMPONENT_RL_MODULE
from ray.rllib.env.env_runner import EnvRunner
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner

from redis_state_sync.errors import SettingsError
from redis_state_sync.keyring import find_keyring
from redis_state_sync.rllib.apply import apply_snapshot, apply_weights
from redis_state_sync.rllib.following import Following
from redis_state_sync.rllib.identity import in_background, namespace_of, writer_id_of
from redis_state_sync.rllib.metrics import EnvRunnerMetrics
from redis_state_sync.rllib.ray_metrics import RayMetrics
from redis_state_sync.rllib.refresh_points import RefreshPoints
from redis_state_sync.rllib.stores import open_rllib_store
from redis_state_sync.settings import Settings
from redis_state_sync.subscriber import StateSubscriber
from redis_state_sync.version import Version

logger = logging.getLogger("redis_state_sync")

SETTINGS_ATTRIBUTE = "redis_state_settings"
# Marks a state that the learner pushed while the store was down, with the version it belongs to.
PUSHED_VERSION = "redis_state_pushed_version"


if TYPE_CHECKING:

    class _EnvRunner(EnvRunner):
        """What the mixin needs of either EnvRunner class."""

        num_envs: int

        def sample(self, *args: Any, **kwargs: Any) -> Any:
            return None

        def set_state(self, state: dict[str, Any]) -> None: ...

        def _make_on_episode_callback(
            self, which: str, idx: int, *args: Any, **kwargs: Any
        ) -> None: ...

else:
    _EnvRunner = object


class RedisEnvRunnerMixin(_EnvRunner):
    """Makes an EnvRunner follow the learner's published state. For your own EnvRunner class::

        class MyEnvRunner(RedisEnvRunnerMixin, SingleAgentEnvRunner):
            ...

        config.env_runners(env_runner_cls=MyEnvRunner)

    A remote EnvRunner builds its client from the config alone, so Ray can restart it. The local
    one lives in the learner's process and is handed newer weights there. A follower has no learner
    (see `Following`): all its EnvRunners are readers.

    Raises:
        SettingsError: If the config has no `redis_state_settings`.
    """

    def __init__(self, *, config: Any, **kwargs: Any) -> None:
        settings = getattr(config, SETTINGS_ATTRIBUTE, None)
        if not isinstance(settings, Settings):
            raise SettingsError(
                f"{type(self).__name__} needs settings: call with_redis_state(config, url)"
            )
        # Ray calls set_state only after construction, but a subclass may call it earlier.
        self._redis_state_subscriber: StateSubscriber | None = None
        self._redis_state_following: Following | None = None
        self._redis_state_local_feed: Callable[[], None] | None = None
        self._redis_state_points: RefreshPoints | None = None
        self._redis_state_prefetches = False
        super().__init__(config=config, **kwargs)
        if self.worker_index or settings.follows:
            subscriber = self._make_subscriber(settings, kwargs.get("log_dir"))
            self._redis_state_subscriber = subscriber
            if settings.follows:
                self._redis_state_following = Following(
                    self, super().set_state, subscriber, settings.first_version_timeout_s
                )
            if not config.in_evaluation:  # What is evaluated is one whole version.
                self._redis_state_prefetches = settings.prefetches
                self._redis_state_points = RefreshPoints(settings) if settings.in_flight else None
        self._redis_state_warned = False

    def _make_subscriber(self, settings: Settings, log_dir: Any) -> StateSubscriber:
        writer_id = writer_id_of(log_dir)
        role = "eval_env_runner" if self.config.in_evaluation else "env_runner"
        role = f"follower_{role}" if settings.follows else role
        namespace = namespace_of(settings, log_dir)
        return StateSubscriber(
            open_rllib_store(settings, writer_id),
            namespace,
            writer=None if settings.follows else writer_id,
            name=f"{socket.gethostname()}:{os.getpid()}:{role}_{self.worker_index or 0}",
            poll_timeout_s=settings.poll_timeout_s,
            first_timeout_s=settings.connect_timeout_s,
            transfer_timeout_s=settings.transfer_timeout_s,
            max_state_bytes=settings.max_state_bytes,
            node_cache_bytes=settings.node_cache_bytes,
            stall_timeout_s=settings.stall_timeout_s,
            # What evaluates must act with what was published just before.
            tracking=(settings.follows or in_background(settings, self.config))
            and not self.config.in_evaluation,
            ttl_s=settings.ttl_s,
            max_staleness_s=settings.max_staleness_s,
            max_staleness_versions=settings.max_staleness_versions,
            on_stale=settings.on_stale,
            stale_wait_s=settings.stale_wait_s,
            prefetch_every_s=settings.refresh_every_s if settings.in_flight else None,
            keyring=find_keyring(required=settings.signed),
            observers=(
                EnvRunnerMetrics(self.metrics),
                RayMetrics(namespace, role, may_be_idle=True),
            ),
        )

    @property
    def redis_state_version(self) -> Version | None:
        """The version that this EnvRunner acts with; None before the first.

        None for a learner's local one, too.
        """
        subscriber = self._redis_state_subscriber
        return subscriber.held if subscriber is not None else None

    def sample(self, *args: Any, **kwargs: Any) -> Any:
        """Applies the newest version if it is newer, then samples as the EnvRunner does.

        Raises:
            StaleStateError: If the version held is staler than the settings allow.
            FirstVersionError: If a follower's EnvRunner has no version, and none came in time.
            ApplyError: If it has none, and the newest does not fit.
        """
        self.refresh_redis_state(limits=True)
        subscriber = self._redis_state_subscriber
        if self._redis_state_following is not None:
            self._redis_state_following.acts()
        with contextlib.ExitStack() as stack:
            if subscriber is not None and self._redis_state_prefetches:
                stack.enter_context(subscriber.prefetching())
            samples = super().sample(*args, **kwargs)
        points = self._redis_state_points
        if points is not None and points.are_missing(samples):
            logger.warning(
                "%s makes no on_episode_step callbacks within sample(): its weights are refreshed "
                "at the top of sample() only",
                type(self).__name__,
            )
        return samples

    def _make_on_episode_callback(self, which: str, idx: int, *args: Any, **kwargs: Any) -> None:
        """As RLlib's; then newer weights are applied, if it is time to (see `refresh_points`)."""
        super()._make_on_episode_callback(which, idx, *args, **kwargs)
        points = self._redis_state_points
        if points is not None and points.passed(which, idx, self.num_envs):
            points.refresh(self._refresh_in_flight)

    def _refresh_in_flight(self) -> bool:
        if self._redis_state_following is not None:
            return self._redis_state_following.refresh_in_flight()
        subscriber = self._redis_state_subscriber
        if subscriber is None:  # A subclass that steps its envs while it is being made.
            return False
        super_set_state = super().set_state
        newer = subscriber.refresh_in_flight(
            lambda snapshot: apply_weights(self, super_set_state, snapshot)
        )
        return newer is not None

    def refresh_redis_state(self, *, limits: bool = False) -> None:
        """Applies the newest version if it is newer than the one this EnvRunner acts with.

        `sample()` does it; the learner of a synchronous algorithm asks for it when an iteration
        ends, while its EnvRunners are idle.

        Args:
            limits: Whether limits of staleness apply, as they do in `sample()`. The local EnvRunner
                has none: its weights come from the learner beside it.

        Raises:
            StaleStateError: If the version held is staler than the settings allow.
            FirstVersionError: As `sample()`.
            ApplyError: As `sample()`.
        """
        if self._redis_state_following is not None:
            self._redis_state_following.refresh(limits=limits)
        elif self._redis_state_subscriber is not None:
            super_set_state = super().set_state
            self._redis_state_subscriber.refresh(
                lambda snapshot: apply_snapshot(self, super_set_state, snapshot), limits=limits
            )
        elif self._redis_state_local_feed is not None:
            self._redis_state_local_feed()

    def set_state(self, state: dict[str, Any]) -> None:
        """As RLlib's. A state from outside means that the next `sample()` fetches again.

        A follower's EnvRunner drops it: what RLlib has to give there are random weights.
        """
        if self._redis_state_following is not None:
            return
        state = dict(state)
        pushed = state.pop(PUSHED_VERSION, None)
        if pushed is not None:
            # The learner decided that it is newer; see `apply_snapshot` for the number.
            self._weights_seq_no = 0
        super().set_state(state)
        subscriber = self._redis_state_subscriber
        if subscriber is None:
            return
        if pushed is not None:
            subscriber.adopt(Version.parse(pushed))
        else:
            subscriber.forget()
            self._warn_if_never_published(subscriber, state)

    def _warn_if_never_published(
        self, subscriber: StateSubscriber, state: Mapping[str, Any]
    ) -> None:
        """Ray's own push arrives although it should be intercepted: the learner's half is missing.

        RLlib pushes once while an Algorithm is set up, and after it restarted an EnvRunner; the
        first is before any poll, and at the second there is a published state.
        """
        if (
            subscriber.polled_in_vain
            and COMPONENT_RL_MODULE in state
            and not self._redis_state_warned
        ):
            self._redis_state_warned = True
            logger.warning(
                "nothing was ever published in namespace %r at %s, and Ray pushes states itself: "
                "was on_algorithm_init replaced by a later .callbacks(on_algorithm_init=...)? "
                "Call with_redis_state(config, url) after it",
                subscriber.keys.namespace,
                subscriber.store.describe(),
            )

    def stop(self) -> None:
        """As RLlib's, and closes the connection."""
        if self._redis_state_subscriber is not None:
            self._redis_state_subscriber.close()
        super().stop()


def follows(cls: type) -> bool:
    """Whether an EnvRunner class polls in its `sample()`: the mixin stands before RLlib's class."""
    order = cls.__mro__
    stock = (SingleAgentEnvRunner, MultiAgentEnvRunner)
    return RedisEnvRunnerMixin in order and all(
        order.index(RedisEnvRunnerMixin) < order.index(base) for base in stock if base in order
    )


class RedisSingleAgentEnvRunner(RedisEnvRunnerMixin, SingleAgentEnvRunner):
    """RLlib's `SingleAgentEnvRunner`, following the learner's published state."""


class RedisMultiAgentEnvRunner(RedisEnvRunnerMixin, MultiAgentEnvRunner):
    """RLlib's `MultiAgentEnvRunner`, following the learner's published state."""
