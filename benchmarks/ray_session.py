"""Ray, and its state server as IMPALA makes it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

# As `ray.rllib.core.COMPONENT_RL_MODULE` and `DEFAULT_MODULE_ID`, and `WEIGHTS_SEQ_NO` of
# `ray.rllib.utils.metrics`: readers that need no more of RLlib do without importing all of it.
RL_MODULE, MODULE_ID, SEQ_NO = "rl_module", "default_policy", "weights_seq_no"
STEPS = "num_env_steps_sampled_lifetime"
# What the largest benchmark keeps in the object store at once, twice.
OBJECT_STORE_BYTES = 4 << 30


@contextlib.contextmanager
def ray_session(object_store_bytes: int = OBJECT_STORE_BYTES) -> Iterator[None]:
    """Ray on this machine alone. Starts it unless a caller did."""
    import ray

    if ray.is_initialized():
        yield
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    for attempt in (1, 2):
        try:
            ray.init(
                include_dashboard=False,
                object_store_memory=object_store_bytes,
                logging_level="warning",
                log_to_driver=False,
            )
        except Exception:
            ray.shutdown()
            if attempt == 2:  # A loaded machine can miss Ray's own start-up limit once.
                raise
        else:
            break
    try:
        yield
    finally:
        ray.shutdown()


class RayServer:
    """Ray's `EnvRunnerStateServer` in an actor, used as `IMPALA.training_step` uses it.

    The weights travel by reference: `ray.put` into the node's shared memory, and the server hands
    out the reference. That is the best case for Ray; across nodes it has to copy, too.
    """

    def __init__(self) -> None:
        import ray
        from ray.rllib import core
        from ray.rllib.utils import metrics

        from benchmarks.ray_server import Server

        assert (RL_MODULE, MODULE_ID) == (core.COMPONENT_RL_MODULE, core.DEFAULT_MODULE_ID)
        assert (SEQ_NO, STEPS) == (metrics.WEIGHTS_SEQ_NO, metrics.NUM_ENV_STEPS_SAMPLED_LIFETIME)
        self._ray = ray
        # The arguments of `IMPALA.setup`, and the default of
        # `config.env_runner_state_server_max_concurrency`.
        self.handle = ray.remote(num_cpus=0, max_restarts=-1, max_concurrency=16)(Server).remote()
        self.pid: int
        self.raylet_pid: int
        self.pid, self.raylet_pid = ray.get(self.handle.pids.remote())
        self.seq_no = 0

    def push(self, weights: Any) -> Any:
        """Holds up the training thread as Ray does; returns what to wait for."""
        self.seq_no += 1
        reference = self._ray.put({MODULE_ID: weights})
        return self.handle.push.remote(
            {RL_MODULE: reference, SEQ_NO: self.seq_no, STEPS: self.seq_no}
        )

    def push_and_wait(self, weights: Any) -> None:
        """Returns when every later pull sees it."""
        self._ray.get(self.push(weights))

    def close(self) -> None:
        """Ends the actor."""
        self._ray.kill(self.handle)
