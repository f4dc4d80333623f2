"""A driver that neither stops its Algorithm nor Ray, and says what has to go with it."""

from __future__ import annotations

from ray.rllib.algorithms.appo import APPOConfig

from redis_state_sync.rllib import with_redis_state
from tests.integration.conftest import start_ray


def main() -> None:
    """Trains once, prints pid and files of its server, and ends while EnvRunners sample."""
    start_ray()
    config = APPOConfig().environment("CartPole-v1").env_runners(num_env_runners=1)
    config.training(train_batch_size_per_learner=100).reporting(min_time_s_per_iteration=1)
    algo = with_redis_state(config, "embedded://").build_algo()
    algo.train()
    server = algo.redis_state_sync._server
    print("SERVER", server.pid, server.socket_path, server._folder, flush=True)
    globals()["kept"] = algo  # until the interpreter exits


if __name__ == "__main__":
    main()
