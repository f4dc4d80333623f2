"""How stale batches are said to be, against what a tap in each Learner sees of the same batches."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ray.rllib.algorithms.appo import APPOConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.columns import Columns
from ray.rllib.core.learner.learner import Learner
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.examples.envs.classes.multi_agent import MultiAgentCartPole
from ray.rllib.utils.metrics import DIFF_NUM_GRAD_UPDATES_VS_SAMPLER_POLICY, WEIGHTS_SEQ_NO

from redis_state_sync.embedded import EmbeddedServer
from redis_state_sync.rllib import with_redis_state


class Tap:
    """Writes down each batch of a Learner, and Ray's own metric of each minibatch.

    It sits where our hooks do not: where Ray has its batch sliced, and where it logs its metric.
    """

    def __init__(self, learner: Learner) -> None:
        self.updates: list[dict[str, Any]] = []
        slice_batch = learner._set_slicing_by_batch_id
        compute = learner._compute_off_policyness

        def seen_whole(batch: Any, *, value: bool) -> Any:
            if value:
                self.updates.append(
                    {
                        "number": learner._weights_seq_no,
                        "begins": time.monotonic(),
                        "steps": {m: steps(b) for m, b in batch.policy_batches.items()},
                        "ray": {m: [] for m in batch.policy_batches},
                    }
                )
            return slice_batch(batch, value=value)

        def seen_minibatch(batch: Any) -> None:
            compute(batch)
            self.updates[-1].setdefault("under_way", time.monotonic())
            for module in batch:
                mean = learner.metrics.peek((module, DIFF_NUM_GRAD_UPDATES_VS_SAMPLER_POLICY))
                self.updates[-1]["ray"][module].append(float(mean))

        learner._set_slicing_by_batch_id = seen_whole  # type: ignore[method-assign]
        learner._compute_off_policyness = seen_minibatch


def steps(batch: Any) -> Any:
    """Stamps of the steps that are learned from."""
    stamps = np.asarray(batch[WEIGHTS_SEQ_NO])
    mask = batch.get(Columns.LOSS_MASK)
    return stamps.flatten() if mask is None else stamps[np.asarray(mask, bool)]


def tap(learner: Any) -> None:
    learner._test_tap = Tap(learner)


def taken(learner: Any) -> list[dict[str, Any]]:
    updates: list[dict[str, Any]] = learner._test_tap.updates
    return list(updates)


def train(algo: Any, *, updates: int, module: str = "default_policy") -> list[dict[str, Any]]:
    """Trains until so many updates are in the results; returns these."""
    found: list[dict[str, Any]] = []
    deadline = time.monotonic() + 100
    while sum(r[module]["num_updates"] for r in found) < updates:
        assert time.monotonic() < deadline
        learners = algo.train()["learners"]
        found += [{m: r["redis_state"] for m, r in learners.items() if "redis_state" in r}]
        found = [r for r in found if r]
    return found


def assert_as_tapped(algo: Any, results: list[dict[str, Any]], module: str) -> list[Any]:
    """Compares results with what the tap saw of the same updates; returns these."""
    (tapped,) = [r.get() for r in algo.learner_group.foreach_learner(taken)]
    assert [u["number"] for u in tapped] == list(range(1, len(tapped) + 1))
    begins = {u["number"]: u["begins"] for u in tapped}
    compared: list[Any] = []
    for result in (r[module] for r in results):
        these = tapped[len(compared) :][: result["num_updates"]]
        compared += these
        lags = [u["number"] - u["steps"][module] for u in these]
        means = [lag.mean() for lag in lags]
        assert result["num_steps"] == sum(map(len, lags))
        assert result["lag_updates_mean"] == pytest.approx(np.mean(means))
        assert result["lag_updates_max"] == max(lag.max() for lag in lags)
        for name, low, high in (("p50", None, 5), ("p90", None, 9), ("spread", 1, 9)):
            expected = [rank(lag, high) - (rank(lag, low) if low else 0) for lag in lags]
            assert result[f"lag_updates_{name}"] == pytest.approx(np.mean(expected)), name
        for mean, update in zip(means, these, strict=True):
            ray_means = update["ray"][module]
            if len(ray_means) == 1:
                assert ray_means == pytest.approx([mean], abs=1e-4)
            assert min(ray_means) - 1e-4 <= mean <= max(ray_means) + 1e-4
        # Weights were made after their update began, and before the next one did.
        known = [u["steps"][module][u["steps"][module] > 0] for u in these]
        unknown = sum(len(u["steps"][module]) - len(k) for u, k in zip(these, known, strict=True))
        assert result["num_steps_of_unknown_age"] == unknown
        pairs = [(u, k) for u, k in zip(these, known, strict=True) if len(k)]
        if pairs:
            shortest = [np.mean([u["begins"] - begins[n + 1] for n in k]) for u, k in pairs]
            longest = [np.mean([u["under_way"] - begins[n] for n in k]) for u, k in pairs]
            assert np.mean(shortest) <= result["lag_seconds_mean"] <= np.mean(longest)
            assert 0 <= result["lag_seconds_p50"] <= result["lag_seconds_p90"]
            assert result["lag_seconds_p90"] <= result["lag_seconds_max"]
            oldest = max(u["under_way"] - begins[k.min()] for u, k in pairs)
            newest = max(u["begins"] - begins[k.min() + 1] for u, k in pairs)
            assert newest <= result["lag_seconds_max"] <= oldest
    return compared


def rank(values: Any, tenths: int) -> float:
    return float(np.sort(values)[-(-len(values) * tenths // 10) - 1])


def appo(*, learners: int = 0) -> Any:
    return (
        APPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=2, rollout_fragment_length=20)
        .training(train_batch_size_per_learner=80)
        .learners(num_learners=learners)
        .reporting(min_time_s_per_iteration=0, min_sample_timesteps_per_iteration=400)
    )


@pytest.mark.parametrize("learners", [0, 1])
def test_appo(server: EmbeddedServer, build: Any, learners: int) -> None:
    """A Learner's thread, here and in an actor, reports the lag of each batch, as Ray's metric."""
    algo = build(with_redis_state(appo(learners=learners), server.url))
    algo.learner_group.foreach_learner(tap)
    compared = assert_as_tapped(algo, train(algo, updates=30), "default_policy")
    lags = np.concatenate([u["number"] - u["steps"]["default_policy"] for u in compared])
    assert lags.min() >= 1
    assert lags.max() > 1  # Else a wrong mean could not be seen.


def test_two_learners(server: EmbeddedServer, build: Any) -> None:
    """Each Learner counts its own updates, of its own part of the batch."""
    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=1, rollout_fragment_length=100)
        .training(train_batch_size_per_learner=100, minibatch_size=50, num_epochs=2)
        .learners(num_learners=2)
    )
    algo = build(with_redis_state(config, server.url))
    algo.train()
    found = algo.train()["learners"]["default_policy"]["redis_state"]
    assert (found["num_updates"], found["num_steps"]) == (2, 200)
    assert (found["lag_updates_mean"], found["num_steps_of_unknown_age"]) == (1, 0)
    assert 0 < found["lag_seconds_mean"] <= found["lag_seconds_max"]


def test_two_modules(server: EmbeddedServer, build: Any) -> None:
    """Each module has the lag of its own steps."""
    config = (
        appo()
        .environment(MultiAgentCartPole, env_config={"num_agents": 2})
        .multi_agent(
            policies={"p0", "p1"}, policy_mapping_fn=lambda agent_id, episode, **kw: f"p{agent_id}"
        )
    )
    algo = build(with_redis_state(config, server.url))
    algo.learner_group.foreach_learner(tap)
    results = train(algo, updates=10, module="p0")
    for module in ("p0", "p1"):
        assert assert_as_tapped(algo, results, module)


def test_lstm_with_minibatches(server: EmbeddedServer, build: Any, tmp_path: Path) -> None:
    """Padding does not count, and neither do epochs and minibatches. A restored Learner goes on."""
    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=1, rollout_fragment_length=50)
        .training(train_batch_size_per_learner=200, minibatch_size=100, num_epochs=3)
        .rl_module(
            rl_module_spec=RLModuleSpec(
                model_config=DefaultModelConfig(use_lstm=True, max_seq_len=16)
            )
        )
    )
    algo = build(with_redis_state(config, server.url))
    algo.learner_group.foreach_learner(tap)
    compared = assert_as_tapped(algo, train(algo, updates=3), "default_policy")
    assert all(len(u["ray"]["default_policy"]) > 3 for u in compared)
    # On policy: made by the last update, and stamped as such.
    assert {int(u["number"] - n) for u in compared for n in u["steps"]["default_policy"]} == {1}
    path = algo.save_to_path(str(tmp_path))
    train(algo, updates=2)
    algo.restore_from_path(path)
    restored = time.monotonic()
    (result,) = train(algo, updates=1)
    assert result["default_policy"]["lag_updates_max"] == 1
    assert result["default_policy"]["num_steps_of_unknown_age"] == 0
    assert 0 < result["default_policy"]["lag_seconds_max"] < time.monotonic() - restored + 1
