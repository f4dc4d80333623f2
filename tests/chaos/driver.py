"""A driver process: trains APPO through the store until it is told to stop."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

from ray.rllib.algorithms.appo import APPOConfig

from redis_state_sync.rllib import with_redis_state
from tests.chaos.process import Process
from tests.integration.conftest import start_ray


def main() -> int:
    """Runs it. Returns the exit code."""
    process = Process("a driver")
    options, journal = process.options, process.journal
    kill = threading.Event()
    process.on("kill a runner", kill.set)
    start_ray()
    config = (
        APPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=2, rollout_fragment_length=25)
        .learners(num_learners=0)
        .training(train_batch_size_per_learner=100)
        .reporting(min_time_s_per_iteration=1)
        .fault_tolerance(restart_failed_env_runners=True, delay_between_env_runner_restarts_s=0.0)
    )
    algo = with_redis_state(config, options.url, namespace=options.namespace).build_algo()
    journal.write("claimed", generation=algo.redis_state_sync.publisher.generation)
    process.listen()
    while not process.stop.is_set():
        if kill.is_set():
            kill.clear()
            journal.write("killed", runner=_kill_one(algo))
        result = algo.train()
        ours = result["redis_state"]
        journal.write(
            "trained",
            steps=result["num_env_steps_sampled_lifetime"],
            restarts=result["fault_tolerance"]["num_remote_worker_restarts"],
            healthy=result["fault_tolerance"]["num_healthy_workers"],
            version=ours["last_version"],
            up=ours["store_is_up"],
            pushes=ours["num_pushes_lifetime"],
            failures=ours["num_failures_lifetime"],
            readers=result["env_runners"].get("redis_state", {}).get("num_failures_lifetime"),
        )
    algo.stop()
    journal.write("end")
    return 0


def _kill_one(algo: Any) -> int:
    pids = algo.env_runner_group.foreach_env_runner(lambda _: os.getpid(), local_env_runner=False)
    os.kill(pids[0], signal.SIGKILL)
    return int(pids[0])


if __name__ == "__main__":
    sys.exit(main())
