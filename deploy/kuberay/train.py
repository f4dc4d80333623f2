"""What rayjob.yaml runs: trains APPO, with its state at the URL in REDIS_STATE_SYNC_URL.

Neither URL nor password is in here, so neither is in a checkpoint.
"""

import os

import ray
from ray.rllib.algorithms.appo import APPOConfig

from redis_state_sync.rllib import with_redis_state

ray.init()  # The cluster that runs the job.
config = (
    APPOConfig()
    .environment("CartPole-v1")
    .env_runners(num_env_runners=int(os.environ.get("NUM_ENV_RUNNERS", "4")))
    .learners(num_learners=0)
)
# A name of its own, so that other jobs can follow it, and its successor takes it over.
with_redis_state(config, namespace="cartpole")

algo = config.build_algo()
for _ in range(int(os.environ.get("ITERATIONS", "20"))):
    result = algo.train()
    print(
        f"version {result['redis_state']['last_version']}, "
        f"return {result['env_runners'].get('episode_return_mean', float('nan')):.1f}",
        flush=True,
    )
algo.stop()
