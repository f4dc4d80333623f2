"""An ordinary RLlib script, plus one call: the EnvRunners get their weights through Redis.

    python examples/quick_start.py
    python examples/quick_start.py --url redis://localhost:6379/0

`embedded://` starts a server of its own and stops it with the driver.
"""

import argparse

import ray
from ray.rllib.algorithms.appo import APPOConfig

from redis_state_sync.rllib import with_redis_state

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--url", default="embedded://", help="where the state goes")
parser.add_argument("--iterations", type=int, default=5, help="calls of train()")
args = parser.parse_args()

ray.init(num_cpus=4, include_dashboard=False)

config = (
    APPOConfig()
    .environment("CartPole-v1")
    .env_runners(num_env_runners=2)
    .learners(num_learners=0)
    .reporting(min_time_s_per_iteration=2)
)
config = with_redis_state(config, args.url)  # the one line that is new

algorithm = config.build_algo()
try:
    for iteration in range(1, args.iterations + 1):
        result = algorithm.train()
        print(f"iteration {iteration}: return {result['env_runners'].get('episode_return_mean')}")
        print("  learner:   ", result["redis_state"])
        print("  EnvRunners:", result["env_runners"]["redis_state"])
finally:
    algorithm.stop()
    ray.shutdown()
