"""Tests of a project that trains with redis_state_sync; no server needs to be installed.

Copy this folder, replace `my_config` and `PolicyServer` by your own, and run `pytest`.
Needs `pip install 'redis-state-sync[rllib,testing]'`.
"""

import numpy as np
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

from redis_state_sync import StatePublisher, StateSubscriber
from redis_state_sync.errors import StoreUnavailableError
from redis_state_sync.rllib import with_redis_state


def my_config():
    return (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=2)
        .training(train_batch_size_per_learner=200, minibatch_size=100, num_epochs=1)
        # fakeredis takes states of up to 100 kB: test with a small model.
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[16]))
    )


class PolicyServer:
    """Your own code that acts with the newest weights."""

    def __init__(self, store):
        self.weights = None
        self.subscriber = StateSubscriber(store, "my-run")

    def act(self, observation):
        self.subscriber.refresh(self.load)
        return int(observation @ self.weights > 0)

    def load(self, snapshot):
        self.weights = snapshot["rl_module/policy"]["w"]


def test_policy_server_acts_with_the_newest_weights(redis_state_store):
    publisher = StatePublisher(redis_state_store, "my-run")
    server = PolicyServer(redis_state_store)
    publisher.publish({"rl_module/policy": {"w": np.array([1.0, 0.0])}}).wait(5)
    assert server.act(np.array([1.0, 1.0])) == 1
    publisher.publish({"rl_module/policy": {"w": np.array([-1.0, 0.0])}}).wait(5)
    assert server.act(np.array([1.0, 1.0])) == 0
    publisher.close()


def test_policy_server_goes_on_while_the_store_is_down(redis_state_scripted_store):
    store = redis_state_scripted_store
    publisher = StatePublisher(store, "my-run", heartbeat_s=60)
    server = PolicyServer(store)
    publisher.publish({"rl_module/policy": {"w": np.array([1.0, 0.0])}}).wait(5)
    assert server.act(np.array([1.0, 1.0])) == 1
    store.go_down(StoreUnavailableError("no route to host"))
    assert server.act(np.array([1.0, 1.0])) == 1
    store.come_back()
    version = publisher.publish({"rl_module/policy": {"w": np.array([-1.0, 0.0])}}).wait(5)
    # A store that failed is left alone for a moment; wait_for asks until it is there.
    server.subscriber.wait_for(server.load, version=version, timeout=5)
    assert server.act(np.array([1.0, 1.0])) == 0
    publisher.close()


def test_training_reaches_every_env_runner(ray_cluster, redis_state_fake_server):
    config = with_redis_state(my_config(), redis_state_fake_server.url)
    algorithm = config.build_algo()
    try:
        state = algorithm.train()["redis_state"]
        algorithm.env_runner_group.foreach_env_runner(lambda r: r.refresh_redis_state())
        versions = algorithm.env_runner_group.foreach_env_runner(
            lambda r: str(r.redis_state_version), local_env_runner=False
        )
        assert state["store_is_up"]
        assert versions == [state["last_version"]] * 2
    finally:
        algorithm.stop()
