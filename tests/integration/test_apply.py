"""A version meets a real EnvRunner, in this process: no Ray cluster is started."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.connectors.env_to_module import MeanStdFilter
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner

from redis_state_sync import StatePublisher, StateSubscriber
from redis_state_sync.memory_store import MemoryStore
from redis_state_sync.rllib.apply import apply_snapshot
from redis_state_sync.rllib.identity import namespace_of
from redis_state_sync.rllib.states import to_components
from redis_state_sync.settings import Settings
from tests.integration.held import assert_same

WAIT = 20.0


def mean_std(env: Any = None, spaces: Any = None, device: Any = None) -> MeanStdFilter:
    return MeanStdFilter()


def make_runner() -> SingleAgentEnvRunner:
    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=0, env_to_module_connector=mean_std)
    )
    return SingleAgentEnvRunner(config=config, worker_index=1)


class Job:
    """A learner and some EnvRunners that follow it."""

    def __init__(self, runners: int) -> None:
        store = MemoryStore()
        self.publisher = StatePublisher(store, "n", heartbeat_s=3600)
        self.runners = [make_runner() for _ in range(runners)]
        self.subscribers = [StateSubscriber(store, "n") for _ in self.runners]
        self.seq_no = 0

    def publish(self, state: dict[str, Any]) -> None:
        self.seq_no += 1
        components, _ = to_components(state, multi_agent=False)
        self.publisher.publish(components, weights_seq_no=self.seq_no).wait(WAIT)

    def refresh(self) -> None:
        for runner, subscriber in zip(self.runners, self.subscribers, strict=True):
            subscriber.refresh(lambda s, runner=runner: apply_snapshot(runner, runner.set_state, s))
            assert subscriber.held == self.publisher.last_version

    def close(self) -> None:
        self.publisher.close()
        for runner in self.runners:
            runner.stop()


@pytest.fixture
def job(request: pytest.FixtureRequest) -> Any:
    made = Job(getattr(request, "param", 1))
    yield made
    made.close()


def weights(runner: Any) -> dict[str, np.ndarray[Any, Any]]:
    return {k: np.array(v) for k, v in runner.module.get_state().items()}


def observations(state: dict[str, Any]) -> int:
    return int(state["MeanStdFilter"][None]["running_stats"][0]["num_pushes"])


@pytest.mark.parametrize("job", [4], indirect=True)
def test_filters_count_every_observation_once(job: Job) -> None:
    """Merged by Ray and carried by us, five rounds count each observation once: C36, C37, C55."""
    driver, *others = job.runners
    expected = 0
    for _ in range(5):
        deltas = []
        for runner in others:
            before = observations(runner._env_to_module.get_state())
            runner.sample(num_timesteps=100)
            deltas.append(runner._env_to_module.get_state())
            expected += observations(deltas[-1]) - before
        driver._env_to_module.merge_states(deltas)
        merged = copy.deepcopy(driver._env_to_module.get_state())
        job.publish({"env_to_module_connector": merged})
        for _ in range(2):  # Looking once more adds nothing.
            job.refresh()
        for runner in job.runners:
            assert observations(runner._env_to_module.get_state()) == expected
            assert_same(runner._env_to_module.get_state(), merged)
    assert 1500 <= expected < 1700


@pytest.mark.parametrize("job", [2], indirect=True)
def test_the_global_count_is_not_each_runners_own(job: Job) -> None:
    """Two runners that are told 1000 and sample 100 each report 200 steps, not 2200: C40."""
    job.publish({"num_env_steps_sampled_lifetime": 1000})
    job.refresh()
    own = 0
    for runner in job.runners:
        assert runner.num_env_steps_sampled_lifetime == 1000
        runner.sample(num_timesteps=100)
        own += int(runner.metrics.peek("num_env_steps_sampled_lifetime"))
    assert own == 200


def test_the_live_module_gets_the_weights(job: Job) -> None:
    """A module that was rebuilt after a reader was made is the one that is updated: C22, C45."""
    (runner,) = job.runners
    first = runner.module
    state = {name: value + 1 for name, value in weights(runner).items()}
    old = weights(runner)
    runner.make_module()
    assert runner.module is not first
    job.publish({"rl_module": state})
    job.refresh()
    assert_same(weights(runner), state)
    assert_same({k: np.array(v) for k, v in first.get_state().items()}, old)


def test_a_smaller_weights_seq_no_is_applied(job: Job) -> None:
    """A newer version counts, though its learner began to count updates anew: C7, C11."""
    (runner,) = job.runners
    state = weights(runner)
    for seq_no in (99, 0, 0):
        state = {name: value + 1 for name, value in state.items()}
        job.seq_no = seq_no
        job.publish({"rl_module": state})
        job.refresh()
        assert_same(weights(runner), state)
        assert runner._weights_seq_no == seq_no + 1


def test_applied_weights_can_be_trained_on(job: Job) -> None:
    """In-place updates of applied weights work, warn of nothing, and stay the runner's own: C55."""
    (runner,) = job.runners
    state = weights(runner)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            job.publish({"rl_module": {k: v + 2 for k, v in state.items()}})
            job.refresh()
            with torch.no_grad():
                for parameter in runner.module.parameters():
                    parameter += 1
        job.publish({"rl_module": {k: v + 4 for k, v in state.items()}})
        job.refresh()
    assert_same(weights(runner), {k: v + 4 for k, v in state.items()})


def test_absent_parts_are_left_alone(job: Job) -> None:
    """A version with one connector, or none, changes just what it has, and skips nothing: C6."""
    (runner,) = job.runners
    runner.sample(num_timesteps=20)
    filters = copy.deepcopy(runner._env_to_module.get_state())
    before = weights(runner)
    job.publish({"module_to_env_connector": runner._module_to_env.get_state()})
    job.refresh()
    assert_same(runner._env_to_module.get_state(), filters)
    assert_same(weights(runner), before)
    job.publish({"rl_module": {name: value + 1 for name, value in before.items()}})
    job.refresh()
    assert_same(runner._env_to_module.get_state(), filters)
    assert_same(weights(runner), {name: value + 1 for name, value in before.items()})


def test_an_unknown_module_is_reported_once(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    """Modules that an EnvRunner lacks are left out, said once, and the others applied: C47."""
    (runner,) = job.runners
    before = weights(runner)
    for number in (1, 2):
        new = {name: value + number for name, value in before.items()}
        job.publish({"rl_module": {"default_policy": new, "module_7": new}})
        job.refresh()
        assert_same(weights(runner), new)
    assert len([r for r in caplog.records if "module_7" in r.getMessage()]) == 1


def test_a_trial_finds_its_own_namespace_again() -> None:
    """A resumed trial has the namespace it had, whatever other trials ran meanwhile: C98, C99."""
    x, y = (f"results/exp/working_dirs/PPO_{n}_lr=0.1" for n in ("00000", "00001"))
    settings = Settings()
    assert namespace_of(settings, x) == namespace_of(Settings(), x) != namespace_of(settings, y)
    assert namespace_of(settings, x) != namespace_of(settings, x.replace("/exp/", "/exp2/"))
    explicit = Settings(namespace="shared")
    assert namespace_of(explicit, x) == namespace_of(explicit, y) == "shared"
