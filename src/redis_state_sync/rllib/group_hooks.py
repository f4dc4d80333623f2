"""Where an EnvRunnerGroup's own methods are intercepted: on the instance, for any Algorithm class.

Both `sync_weights` and `sync_env_runner_states` end in one call of
`foreach_env_runner_async_fetch_ready(func="set_state", ...)` (Ray 2.60). Ray still decides what to
send and merges connector states; only the sending is replaced.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from ray.rllib.utils.metrics import NUM_ENV_STEPS_SAMPLED_LIFETIME


class Sync(Protocol):
    """What the hooks need of `LearnerSync`."""

    def deliver(self, state: Any, push: Callable[[Any], Any], *, evaluation: bool = False) -> None:
        """Publishes a state, or has it pushed."""
        ...

    def close(self) -> None:
        """Ends publishing."""
        ...


class GroupHooks:
    """The hooks of one EnvRunnerGroup.

    Args:
        sync: Gets the states.
        group: The EnvRunnerGroup.
        evaluation: Whether it is the one for evaluation.
        connector_states: Returns the common state of both connector pipelines.
    """

    def __init__(
        self,
        sync: Sync,
        group: Any,
        evaluation: bool,
        connector_states: Callable[[], dict[str, Any]],
    ) -> None:
        self._sync = sync
        self._group = group
        self._evaluation = evaluation
        self._connector_states = connector_states
        self._send = group.foreach_env_runner_async_fetch_ready
        self._sync_states = group.sync_env_runner_states
        self._stop = group.stop

    def install(self) -> None:
        """Puts the hooks in place."""
        self._group.foreach_env_runner_async_fetch_ready = self.foreach_env_runner_async_fetch_ready
        self._group.sync_env_runner_states = self.sync_env_runner_states
        if not self._evaluation:
            self._group.stop = self.stop

    def foreach_env_runner_async_fetch_ready(
        self, func: Any, kwargs: Any = None, *args: Any, **more: Any
    ) -> Any:
        """Publishes the state of a `set_state` call; anything else goes its usual way."""
        if func != "set_state" or not isinstance(kwargs, dict) or "state" not in kwargs:
            return self._send(func, kwargs, *args, **more)

        def push(state: Any) -> Any:
            return self._send(func, {**kwargs, "state": state}, *args, **more)

        self._sync.deliver(kwargs["state"], push, evaluation=self._evaluation)
        return []

    def sync_env_runner_states(self, **kwargs: Any) -> None:
        """Ray's own, and what it leaves out where it returns early for want of receivers.

        Without remote EnvRunners nothing is sent, though followers in other jobs, and EnvRunners
        that are being restarted, still need every version. And a local EnvRunner for evaluation
        gets weights only, so that it would evaluate with empty filters.
        """
        self._sync_states(**kwargs)
        local = self._group.local_env_runner
        if local is None or self._group.num_healthy_remote_env_runners() > 0:
            return
        connectors = self._connector_states()
        if self._evaluation:
            local.set_state(connectors)
            return
        state = {**connectors, **(kwargs.get("rl_module_state") or {})}
        if kwargs.get("env_steps_sampled") is not None:
            state[NUM_ENV_STEPS_SAMPLED_LIFETIME] = int(kwargs["env_steps_sampled"])
        self._sync.deliver(state, lambda _: None)

    def ask_to_refresh(self) -> None:
        """Has the remote EnvRunners poll as soon as they are idle, without waiting for them."""
        name = "refresh_redis_state"
        self._send(name, tag=name)

    def stop(self) -> None:
        """Ray's own, then ends publishing."""
        try:
            self._stop()
        finally:
            self._sync.close()
