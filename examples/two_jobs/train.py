"""The learner's job: trains PPO on CartPole, and publishes each new state.

python train.py
python train.py --take-over                      # a successor: goes on where that one is
python train.py --checkpoint out                 # saves after each iteration, and begins there
"""

from pathlib import Path

from common import arguments, cartpole, start_ray

from redis_state_sync import StalePublisherError
from redis_state_sync.rllib import with_redis_state

parser = arguments(__doc__)
parser.add_argument("--iterations", type=int, default=1000, help="calls of train()")
parser.add_argument("--take-over", action="store_true", help="begin with the newest version")
parser.add_argument("--checkpoint", type=Path, help="folder to save to and to begin with")
args = parser.parse_args()

start_ray()
# resume=True: claims the namespace, which ends the predecessor's publishing; then takes its last
# version, which nothing can come after any more, and publishes it as its own first one.
config = with_redis_state(cartpole(), namespace=args.namespace, resume=args.take_over)
algorithm = config.build_algo()
try:
    if args.checkpoint and args.checkpoint.exists():
        # Also has what only a learner needs: optimizer, value function, counters.
        algorithm.restore_from_path(args.checkpoint.resolve())
    print(f"learner: begins with {algorithm.redis_state_sync.publisher.last_version}", flush=True)
    for _ in range(args.iterations):
        result = algorithm.train()
        version = result["redis_state"]["last_version"]
        mean = result["env_runners"].get("episode_return_mean", float("nan"))
        print(f"learner: version {version}, return {mean:.1f}", flush=True)
        if args.checkpoint:
            algorithm.save_to_path(args.checkpoint.resolve())
except StalePublisherError as error:
    print(f"learner: handed over. {error}", flush=True)
except KeyboardInterrupt:
    print("learner: interrupted", flush=True)
finally:
    algorithm.stop()
