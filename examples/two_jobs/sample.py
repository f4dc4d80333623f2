"""Another job: EnvRunners that sample without a learner beside them, and outlive it.

    python sample.py

Each sample() begins with the newest version, and goes on with the last one if there is no more
learner, or no more server.
"""

from common import arguments, cartpole, start_ray

from redis_state_sync.rllib import with_redis_state

parser = arguments(__doc__)
parser.add_argument("--env-runners", type=int, default=1, help="how many sample at once")
parser.add_argument("--steps", type=int, default=1000, help="env steps in each sample()")
args = parser.parse_args()
steps = args.steps


def sample(env_runner):
    """Runs in each EnvRunner. Episodes are RLlib's, with observations, actions, rewards."""
    episodes = env_runner.sample(num_timesteps=steps)
    return episodes, str(env_runner.redis_state_version)


start_ray(args.env_runners)
config = cartpole().env_runners(num_env_runners=args.env_runners)
algorithm = with_redis_state(config, namespace=args.namespace, role="follower").build_algo()
group = algorithm.env_runner_group
try:
    while True:
        for episodes, version in group.foreach_env_runner(sample, local_env_runner=False):
            count = sum(len(episode) for episode in episodes)
            print(f"sampling: {count} steps with version {version}", flush=True)
        algorithm.restore_env_runners(group)  # Those that died, if Ray has them again.
except KeyboardInterrupt:
    print("sampling: interrupted", flush=True)
finally:
    algorithm.stop()
