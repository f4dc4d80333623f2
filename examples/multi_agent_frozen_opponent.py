"""Two agents, one of which never learns: its weights are sent once, and never again.

    python examples/multi_agent_frozen_opponent.py

Every version names the weights of both RLModules by the digest of their bytes. The learner asks
the server which of them it lacks, and sends only those; an EnvRunner fetches only what it does
not hold already.
"""

import argparse

import ray
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.examples.envs.classes.multi_agent import MultiAgentCartPole

from redis_state_sync.rllib import with_redis_state

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--url", default="embedded://", help="where the state goes")
parser.add_argument("--iterations", type=int, default=3, help="calls of train()")
args = parser.parse_args()


def module_of(agent_id, episode, **_):
    return "opponent" if agent_id == 1 else "main"


def opponent_weights(env_runner):
    return float(sum(p.sum() for p in env_runner.module["opponent"].parameters()))


ray.init(num_cpus=4, include_dashboard=False)

config = (
    PPOConfig()
    .environment(MultiAgentCartPole, env_config={"num_agents": 2})
    .env_runners(num_env_runners=2)
    .multi_agent(
        policies={"main", "opponent"},
        policy_mapping_fn=module_of,
        policies_to_train=["main"],
    )
    .training(train_batch_size_per_learner=1000, minibatch_size=250, num_epochs=5)
    .learners(num_learners=0)
)
config = with_redis_state(config, args.url)

algorithm = config.build_algo()
try:
    before = algorithm.env_runner_group.foreach_env_runner(opponent_weights, local_env_runner=False)
    for iteration in range(1, args.iterations + 1):
        state = algorithm.train()["redis_state"]
        sent, saved = state["num_bytes_sent_lifetime"], state["num_bytes_saved_lifetime"]
        print(
            f"iteration {iteration}: {state['num_publishes_lifetime']} versions, "
            f"{sent:,} bytes sent, {saved:,} bytes not sent again (num_bytes_saved_lifetime)"
        )
    after = algorithm.env_runner_group.foreach_env_runner(opponent_weights, local_env_runner=False)
    print(f"the opponent is the same in all EnvRunners, before and after: {before == after}")
finally:
    algorithm.stop()
    ray.shutdown()
