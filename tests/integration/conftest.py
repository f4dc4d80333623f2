"""One Ray and one server for each test module."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

ray = pytest.importorskip("ray")

from redis_state_sync.embedded import EmbeddedServer  # noqa: E402


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "integration" in item.path.parts:
            item.add_marker(pytest.mark.ray)
            # On a loaded machine Ray alone can take half a minute to start.
            item.add_marker(pytest.mark.timeout(300))


def start_ray() -> None:
    for attempt in (1, 2):
        try:
            ray.init(
                include_dashboard=False,
                num_cpus=8,
                object_store_memory=300_000_000,
                logging_level="warning",
                log_to_driver=False,
            )
        except Exception:
            ray.shutdown()
            if attempt == 2:  # A loaded machine can miss Ray's own start-up limit once.
                raise
        else:
            return


@pytest.fixture(scope="module")
def ray_session() -> Iterator[None]:
    start_ray()
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer(host="127.0.0.1", port=_free_port()) as running:
        yield running


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def build(ray_session: None) -> Iterator[Any]:
    """Builds Algorithms and stops them when the test ends."""
    built: list[Any] = []

    def _build(config: Any) -> Any:
        algo = config.build_algo()
        built.append(algo)
        return algo

    yield _build
    for algo in built:
        algo.stop()
