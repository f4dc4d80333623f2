"""How stale are train batches, with newer weights at each `sample()`, and between env steps?

    python examples/in_flight.py
    python examples/in_flight.py --seconds 20 --url redis://localhost:6379/0

The env is CartPole that takes its time, as a simulator does. `result["learners"]` says how many
gradient updates old the weights were that a batch was sampled with; 1 is the least.
"""

import argparse
import time

import gymnasium as gym
import ray
from ray.rllib.algorithms.appo import APPOConfig

from redis_state_sync.rllib import with_redis_state

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--url", default="embedded://", help="where the state goes")
parser.add_argument("--seconds", type=float, default=10.0, help="of training, each")
args = parser.parse_args()


class SlowCartPole(gym.Wrapper):
    """CartPole whose steps take 5 ms."""

    def __init__(self, config):
        super().__init__(gym.make("CartPole-v1"))

    def step(self, action):
        time.sleep(0.005)
        return self.env.step(action)


def mean_lag(refresh):
    """Trains for a while; the lag in updates of the batches of the last result."""
    config = (
        APPOConfig()
        .environment(SlowCartPole)
        .env_runners(num_env_runners=2, rollout_fragment_length=100)
        .learners(num_learners=0)
        .training(train_batch_size_per_learner=100, use_circular_buffer=False)
        .reporting(min_time_s_per_iteration=args.seconds / 2)
    )
    with_redis_state(config, args.url, refresh=refresh)
    algorithm = config.build_algo()
    try:
        for _ in range(2):  # The first one is for warming up.
            result = algorithm.train()
    finally:
        algorithm.stop()
    return result["learners"]["default_policy"]["redis_state"]["lag_updates_mean"]


ray.init(num_cpus=4, include_dashboard=False)
try:
    for refresh in ("sample", "steps"):
        print(f"refresh={refresh!r}: {mean_lag(refresh):.1f} updates old")
finally:
    ray.shutdown()
