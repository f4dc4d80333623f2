"""What the jobs agree on: the env and its modules. And a small Ray for each of them."""

import argparse

import ray
from ray.rllib.algorithms.ppo import PPOConfig


def arguments(docstring):
    """A parser with what all of them are asked for. The store's URL is in REDIS_STATE_SYNC_URL."""
    parser = argparse.ArgumentParser(description=docstring.partition("\n")[0])
    parser.add_argument("--namespace", default="two-jobs", help="what the jobs share")
    return parser


def start_ray(num_cpus=1):
    """A Ray of this job's own: "local" never joins another one that runs on this machine."""
    ray.init(
        address="local",
        num_cpus=num_cpus,
        object_store_memory=100 * 1024 * 1024,
        include_dashboard=False,
        logging_level="warning",
    )


def cartpole():
    """The config that learner and followers start from, so that their modules are the same."""
    return (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=1, rollout_fragment_length=200)
        .training(train_batch_size_per_learner=1000, minibatch_size=250, num_epochs=5)
        .learners(num_learners=0)
    )
