"""An EnvRunner class of one's own that follows the published state: put the mixin first.

    python examples/custom_env_runner.py

This one counts with how many versions of the weights it has sampled, and how many of its samples
found no newer one.
"""

import argparse

import ray
from ray.rllib.algorithms.appo import APPOConfig
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner

from redis_state_sync.rllib import RedisEnvRunnerMixin, with_redis_state


class CountingEnvRunner(RedisEnvRunnerMixin, SingleAgentEnvRunner):
    """Logs two more metrics."""

    def sample(self, **kwargs):
        before = self.redis_state_version
        episodes = super().sample(**kwargs)  # polls, applies what is newer, then samples
        changed = self.redis_state_version != before
        self.metrics.log_value("versions_used", int(changed), reduce="lifetime_sum")
        self.metrics.log_value("samples_without_change", int(not changed), reduce="lifetime_sum")
        return episodes


parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--url", default="embedded://", help="where the state goes")
parser.add_argument("--iterations", type=int, default=3, help="calls of train()")
args = parser.parse_args()

ray.init(num_cpus=4, include_dashboard=False)

config = (
    APPOConfig()
    .environment("CartPole-v1")
    .env_runners(num_env_runners=2, env_runner_cls=CountingEnvRunner)
    .learners(num_learners=0)
    .reporting(min_time_s_per_iteration=2)
)
config = with_redis_state(config, args.url)  # refuses a class that lacks the mixin

algorithm = config.build_algo()
try:
    for iteration in range(1, args.iterations + 1):
        runners = algorithm.train()["env_runners"]
        print(
            f"iteration {iteration}: {runners.get('versions_used', 0):.0f} versions used, "
            f"{runners.get('samples_without_change', 0):.0f} samples found nothing newer"
        )
finally:
    algorithm.stop()
    ray.shutdown()
