"""What a project that trains with redis_state_sync puts into its own root conftest.py."""

import pytest
import ray

pytest_plugins = ["redis_state_sync.testing"]


@pytest.fixture(scope="session")
def ray_cluster():
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()
