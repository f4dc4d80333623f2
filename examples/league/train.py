"""Self-play: `main` plays against past selves, which are pinned in the store.

    python examples/league/train.py --url redis://127.0.0.1:6390

Start it again, and it goes on with the same league. See README.md.
"""

import argparse

import ray
from league import PREFIX, WEIGHTS, League, next_number, pin_name
from nim import Nim
from players import Opponent, Player
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from ray.rllib.core.rl_module.rl_module import RLModuleSpec

from redis_state_sync import History, open_store
from redis_state_sync.rllib import with_redis_state


def make_config(url, namespace, *, runners=2, hidden=64):
    """The algorithm: anything of RLlib's would do."""
    model = {"hidden": hidden}
    config = (
        IMPALAConfig()
        .environment(Nim)
        .env_runners(num_env_runners=runners, rollout_fragment_length=100)
        .multi_agent(
            policies={"main", "opponent"},
            policy_mapping_fn=lambda agent_id, episode, **_: agent_id,
            policies_to_train=["main"],
        )
        .rl_module(
            rl_module_spec=MultiRLModuleSpec(
                rl_module_specs={
                    "main": RLModuleSpec(Player, model_config=model),
                    "opponent": RLModuleSpec(Opponent, model_config=model),
                }
            )
        )
        .callbacks(League)
        .training(lr=0.003, train_batch_size_per_learner=500, entropy_coeff=0.005)
        .learners(num_learners=0)
        .reporting(min_time_s_per_iteration=2)
    )
    return with_redis_state(config, url, namespace=namespace)


def take_up(algorithm, history):
    """Has `main` go on from its newest past self, if there is one; returns the number of the next.

    Its optimizer begins anew. To have that as well, restore a checkpoint of RLlib's instead.
    """
    pins = history.pins()
    number = next_number(pins)
    if number:
        newest = history.fetch(pin_name(number - 1))
        weights = {"main": newest[WEIGHTS]}
        algorithm.set_state({"learner_group": {"learner": {"rl_module": weights}}})
    return number


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--url", help="the store; default: REDIS_STATE_SYNC_URL")
    parser.add_argument("--namespace", default="nim-league")
    parser.add_argument("--iterations", type=int, default=40, help="calls of train()")
    parser.add_argument("--pin-every", type=int, default=5, help="of them")
    parser.add_argument("--keep", type=int, default=12, help="how many pins to keep")
    args = parser.parse_args()

    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False)
    history = History(open_store(args.url), args.namespace)
    algorithm = make_config(args.url, args.namespace).build_algo()
    try:
        number = take_up(algorithm, history)
        print(f"the league has {len(history.pins())} past selves; the next one is number {number}")
        history.pin(pin_name(number), "newest")
        for iteration in range(1, args.iterations + 1):
            result = algorithm.train()
            if iteration % args.pin_every:
                continue
            number += 1
            version = history.pin(pin_name(number), "newest")
            for name in sorted(n for n in history.pins() if n.startswith(PREFIX))[1 : -args.keep]:
                history.unpin(name)  # The first one stays, to see how far it got.
            report(iteration, number, version, result)
    finally:
        algorithm.stop()
        history.close()
        ray.shutdown()


def report(iteration, number, version, result):
    """What a result says of the league, and of what was sent."""
    state = result["redis_state"]
    sent, publishes = state["num_bytes_sent_lifetime"], state["num_publishes_lifetime"]
    print(f"\niteration {iteration}: pinned {version} as {pin_name(number)}")
    print(f"  {publishes} versions, {sent:,} bytes sent, {sent // publishes:,} for each version")
    for name, games in sorted(result["env_runners"].get("league", {}).items()):
        print(f"  {name}: {games['win_rate']:.0%} of {games['games_lifetime']:.0f} games won")


if __name__ == "__main__":
    main()
