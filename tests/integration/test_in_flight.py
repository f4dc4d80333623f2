"""Weights that change within a sample(): each step says truly which ones acted. No Ray cluster."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from ray.rllib.algorithms.ppo import PPOConfig

from redis_state_sync.embedded import EmbeddedServer
from redis_state_sync.errors import SettingsError
from redis_state_sync.rllib import with_redis_state
from tests.contract.servers import free_port
from tests.integration.held import assert_same
from tests.integration.in_flight import WAIT, Flight, assert_honest, stamps
from tests.integration.test_apply import mean_std, observations


@pytest.fixture
def flights(server: EmbeddedServer) -> Iterator[Any]:
    """Makes flights and closes them when the test ends."""
    made: list[Flight] = []

    def make(**kwargs: Any) -> Flight:
        made.append(Flight(server.url, **kwargs))
        return made[-1]

    yield make
    for flight in made:
        flight.close()


KINDS = [
    {},
    {"num_envs": 3},
    {"hidden": 600},  # More than a megabyte: modules point at their weights.
    {"hidden": 600, "num_envs": 3, "node_cache_bytes": 0},
    {"multi_agent": True},
    {"multi_agent": True, "num_envs": 3, "hidden": 600},
    {"lstm": True},
    {"lstm": True, "num_envs": 3},
]


@pytest.mark.parametrize("prefetch", [False, True])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_every_step_is_of_the_version_it_names(flights: Any, kind: Any, prefetch: bool) -> None:
    """Whenever versions come, the outputs recorded with a step are those of just the version that
    it is stamped with: its logits and its action's probability, for its observation.
    """
    flight = flights(
        refresh="steps", prefetch=prefetch, refresh_every_s=None if prefetch else 1e-6, **kind
    )
    flight.publish()
    steps, versions = 0, set()
    for _ in range(3):
        episodes = flight.sample(60 * flight.num_envs)
        if prefetch:  # What comes by the thread may need a moment: let it.
            time.sleep(0.02)
        steps += assert_honest(flight, episodes)
        for agent in ("often", "seldom") if flight.multi_agent else (None,):
            for numbers in stamps(episodes, agent):
                assert (np.diff(numbers) >= 0).all()
                versions.update(numbers.tolist())
    assert steps >= 120
    assert len(versions) >= (4 if prefetch else 10)


@pytest.mark.parametrize("num_envs", [1, 3])
def test_episode_mode(flights: Any, num_envs: int) -> None:
    """With one env each episode is of one version, but for where `sample()` itself begins anew;
    with several, versions change only where an episode of one of them starts.
    """
    flight = flights(refresh="episode", refresh_every_s=1e-6, prefetch=False, num_envs=num_envs)
    flight.publish()
    episodes = flight.sample(300)
    assert assert_honest(flight, episodes) >= 300
    numbers = stamps(episodes)
    if num_envs == 1:
        assert all(len(np.unique(n)) == 1 for n in numbers)
    versions = np.unique(np.concatenate(numbers))
    assert 3 < len(versions) <= flight.starts + 1


@pytest.mark.parametrize("prefetch", [False, True])
def test_every_so_many_steps(flights: Any, prefetch: bool) -> None:
    """Versions change after so many steps at the earliest."""
    flight = flights(
        refresh="steps", refresh_every_steps=10, refresh_every_s=1e-6, prefetch=prefetch, every=1
    )
    flight.publish()
    episodes = flight.sample(100)
    assert_honest(flight, episodes)
    numbers = np.concatenate(stamps(episodes))
    changes = np.flatnonzero(np.diff(np.sort(numbers)))
    assert (np.diff(changes) >= 9).all()  # A reset is no step of an episode, and counts as one.
    assert 2 <= len(changes) <= 10


def test_every_so_many_seconds(flights: Any) -> None:
    """A long interval lets nothing change within a short sample but at its first point."""
    flight = flights(refresh="steps", refresh_every_s=3600.0, prefetch=False, every=1)
    flight.publish()
    numbers = np.concatenate(stamps(flight.sample(100)))
    assert len(np.unique(numbers)) <= 2


@pytest.mark.parametrize("prefetch", [False, True])
def test_without_in_flight_a_sample_is_of_one_version(flights: Any, prefetch: bool) -> None:
    """refresh="sample", prefetched or not: what comes meanwhile is applied by the next sample."""
    flight = flights(prefetch=prefetch)
    flight.publish()
    for _ in range(3):
        newest = flight.seq_no
        episodes = flight.sample(50)
        assert_honest(flight, episodes)
        assert set(np.concatenate(stamps(episodes))) == {newest}
        assert flight.seq_no > newest
    thread = flight.runner._redis_state_subscriber._prefetcher._thread
    assert (thread is not None) == prefetch


def test_evaluation_is_of_one_version(flights: Any) -> None:
    """What is evaluated does not change within a sample(), and nothing is prefetched for it."""
    flight = flights(refresh="steps", refresh_every_s=1e-6, evaluation=True)
    flight.publish()
    episodes = flight.sample(50)
    assert set(np.concatenate(stamps(episodes))) == {1}
    assert flight.seq_no > 3
    assert flight.runner._redis_state_subscriber._prefetcher._thread is None


def test_the_local_env_runner_has_no_subscriber(server: EmbeddedServer) -> None:
    """It lives with the learner: it neither refreshes in flight nor prefetches."""
    flight = Flight(server.url, refresh="steps", worker_index=0)
    assert flight.runner._redis_state_subscriber is None
    assert flight.runner._redis_state_points is None
    flight.runner.stop()


def test_filters_are_left_alone_in_flight(flights: Any) -> None:
    """In flight a filter goes on from what it has seen; the common state comes with the next
    sample(). Nothing that was seen is lost, and nothing counted twice.
    """
    flight = flights(refresh="steps", refresh_every_s=1e-6, prefetch=False, connector=mean_std)
    runner, counts = flight.runner, []

    def publish(runner: Any) -> None:
        counts.append(observations(runner._env_to_module.get_state()))
        flight.publish(env_to_module_connector=common, num_env_steps_sampled_lifetime=5000)

    flight.on_step = lambda runner: None
    flight.publish()
    flight.sample(30)
    common = copy.deepcopy(runner._env_to_module.get_state())
    seen, steps = observations(common), runner.num_env_steps_sampled_lifetime
    flight.on_step = publish
    flight.sample(40)
    assert (np.diff(counts) > 0).all(), "a filter went back"
    assert len(np.unique(flight.seen)) > 20
    assert counts[-1] - seen >= 38
    assert runner.num_env_steps_sampled_lifetime < 5000
    assert runner.num_env_steps_sampled_lifetime >= steps
    own = copy.deepcopy(runner._env_to_module.get_state())
    assert observations(own) > seen
    flight.on_step = lambda runner: None
    runner.refresh_redis_state()
    assert_same(runner._env_to_module.get_state(), common)
    assert runner.num_env_steps_sampled_lifetime == 5000


def test_a_version_that_does_not_fit_is_refused_in_flight(flights: Any) -> None:
    """Sampling goes on with what the EnvRunner has, and the next version that fits is taken."""
    flight = flights(refresh="steps", refresh_every_s=1e-6, prefetch=False)
    flight.publish()
    bad = {"wrong": np.zeros(3, np.float32)}
    done: list[int] = []

    def once(runner: Any) -> None:
        done.append(runner._weights_seq_no)
        if len(done) == 10:
            version = flight.publisher.publish({"rl_module/default_policy": bad}, weights_seq_no=99)
            version.wait(WAIT)
        if len(done) == 30:
            flight.publish()

    flight.on_step = once
    episodes = flight.sample(60)
    assert_honest(flight, episodes)
    assert set(done) == {1, 2}
    assert done.count(1) == 30
    metrics = flight.runner.get_metrics()["redis_state"]["num_failures_lifetime"]
    assert "apply" in metrics


def test_user_callbacks_see_one_version(flights: Any) -> None:
    """Whatever a callback reads from the module is of the version that the EnvRunner names."""
    flight = flights(refresh="steps", refresh_every_s=1e-6, prefetch=False, num_envs=3)

    def look(runner: Any) -> None:
        for name, value in runner.module.get_state().items():
            expected = flight.versions[runner._weights_seq_no][None][name]
            assert (np.asarray(value) == expected).all()
        if flight.rng.randrange(4) == 0:
            flight.publish()

    flight.publish()
    flight.on_step = look
    flight.sample(90)
    assert len(set(flight.seen)) > 5


@pytest.mark.parametrize("prefetch", [False, True])
def test_the_store_goes_away_and_comes_back(prefetch: bool) -> None:
    """An outage in the middle of a sample() costs it next to nothing: weights are kept, and what
    is published after it is applied in flight, within the same sample().
    """
    port = free_port()
    first = EmbeddedServer(host="127.0.0.1", port=port)
    flight = Flight(
        f"redis://127.0.0.1:{port}", refresh="steps", refresh_every_s=0.01, prefetch=prefetch
    )
    later: list[EmbeddedServer] = []
    slowest = [0.0, time.perf_counter()]

    def step(runner: Any) -> None:
        now = time.perf_counter()
        slowest[:] = [max(slowest[0], now - slowest[1]), now]
        time.sleep(0.002)
        steps = len(flight.seen)
        if steps == 100:
            first.stop()
        elif steps == 200:
            later.append(EmbeddedServer(host="127.0.0.1", port=port))
            flight.publish()
        slowest[1] = time.perf_counter()

    flight.publish()
    flight.on_step = step
    try:
        episodes = flight.sample(2500)
        assert_honest(flight, episodes)
        assert set(flight.seen[:200]) == {1}
        assert flight.seen[-1] == 2
        # A poll may take 50 ms; a reply that does not come from a dead server half a second.
        assert slowest[0] < WAIT / 4
    finally:
        flight.close()
        for server in later:
            server.stop()


def test_a_synchronous_algorithm_is_refused() -> None:
    """PPO expects one policy per sample: an error says so, and what to do."""
    for refresh in ("steps", "episode"):
        with pytest.raises(SettingsError, match=r"synchronous.*PPOConfig.*mode='async'"):
            with_redis_state(PPOConfig(), "redis://localhost", refresh=refresh)
    with_redis_state(PPOConfig(), "redis://localhost", refresh="steps", mode="async")
    with_redis_state(PPOConfig(), "redis://localhost", prefetch=True)
