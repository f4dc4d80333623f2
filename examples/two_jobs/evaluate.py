"""Another job: evaluates whatever the learner's job published last, for as long as you like.

    python evaluate.py

Start it before the learner or after it, and end either of them: this one goes on.
"""

import time

from common import arguments, cartpole, start_ray

from redis_state_sync.rllib import with_redis_state

parser = arguments(__doc__)
parser.add_argument("--episodes", type=int, default=5, help="episodes in each evaluation")
parser.add_argument("--every", type=float, default=1.0, help="seconds between evaluations")
args = parser.parse_args()

start_ray()
config = (
    cartpole()
    .env_runners(num_env_runners=0)  # It samples nothing but what it evaluates.
    .evaluation(
        evaluation_num_env_runners=1,
        evaluation_duration=args.episodes,
        evaluation_config={"explore": False},
    )
)
print("evaluation: waits for a first version", flush=True)
algorithm = with_redis_state(config, namespace=args.namespace, role="follower").build_algo()
try:
    while True:
        result = algorithm.evaluate()
        version = result["redis_state"]["version"]
        mean = result["env_runners"]["episode_return_mean"]
        print(f"evaluation: version {version}, return {mean:.1f}", flush=True)
        time.sleep(args.every)
except KeyboardInterrupt:
    print("evaluation: interrupted", flush=True)
finally:
    algorithm.stop()
