"""What a Learner logs about its batches, and what a result makes of it, without a Ray cluster."""

from __future__ import annotations

import logging
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("ray")

import torch
from ray.rllib.core.columns import Columns
from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch
from ray.rllib.utils.metrics import WEIGHTS_SEQ_NO
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger
from ray.rllib.utils.minibatch_utils import MiniBatchCyclicIterator, MiniBatchDummyIterator

from redis_state_sync.rllib.learner_hooks import account_for_staleness
from redis_state_sync.rllib.metrics import summarise_lags


class FakeLearner:
    """Calls its own methods in the order in which RLlib's Learner does."""

    def __init__(self) -> None:
        self._weights_seq_no = 0
        self.metrics = MetricsLogger(root=False)
        self.hooked_updates = 0

    def update(self, batch: Any) -> None:
        self._weights_seq_no += 1
        for _ in self._create_iterator_if_necessary(training_data=batch):
            pass
        self.after_gradient_based_update(timesteps={})

    def _create_iterator_if_necessary(self, *, training_data: Any) -> Any:
        if not isinstance(training_data, MultiAgentBatch):
            return {}
        return MiniBatchDummyIterator(
            training_data, minibatch_size=0, shuffle_batch_per_epoch=False
        )

    def after_gradient_based_update(self, *, timesteps: dict[str, Any]) -> None:
        self.hooked_updates += 1

    def set_state(self, state: dict[str, Any]) -> None:
        self._weights_seq_no = state[WEIGHTS_SEQ_NO]


class MinibatchLearner(FakeLearner):
    def _create_iterator_if_necessary(self, *, training_data: Any) -> Any:
        return MiniBatchCyclicIterator(training_data, num_epochs=3, minibatch_size=2)


def batch_of(stamps: Any, mask: Any = None, module: str = "p") -> MultiAgentBatch:
    columns = {Columns.OBS: np.zeros(np.shape(stamps)), WEIGHTS_SEQ_NO: stamps}
    if mask is not None:
        columns[Columns.LOSS_MASK] = mask
    return MultiAgentBatch({module: SampleBatch(columns)}, env_steps=len(stamps))


def hooked(learner: Any) -> Any:
    account_for_staleness(learner)
    return learner


def result_of(*learners: Any) -> Any:
    """The results of learners, as an Algorithm gets them."""
    root = MetricsLogger(root=True)
    root.aggregate([learner.metrics.reduce() for learner in learners], key="learners")
    result = root.compile()["learners"]
    summarise_lags(result)
    return result


def test_each_update_counts_once() -> None:
    """An update of six minibatches is one update of the whole batch; RLlib's methods run."""
    learner = hooked(MinibatchLearner())
    learner.update(batch_of(torch.tensor([0, 0, 0, 0])))
    learner.update(batch_of(torch.tensor([0, 1, 1, 1])))
    found = result_of(learner)["p"]["redis_state"]
    assert (found["num_updates"], found["num_steps"]) == (2, 8)
    assert (found["lag_updates_mean"], found["lag_updates_max"]) == ((1 + 1.25) / 2, 2)
    assert found["num_steps_of_unknown_age"] == 5
    assert found["lag_seconds_max"] >= 0
    assert learner.hooked_updates == 2


@pytest.mark.parametrize("as_tensor", [torch.tensor, np.array])
def test_masked_steps_are_left_out(as_tensor: Any) -> None:
    """What a module does not learn from does not count: padding, and steps added for values."""
    learner = hooked(FakeLearner())
    learner._weights_seq_no = 9
    stamps = as_tensor([[9, 8, 0], [5, 0, 0]])
    mask = as_tensor([[True, True, False], [True, False, False]])
    learner.update(batch_of(stamps, mask))
    found = result_of(learner)["p"]["redis_state"]
    assert (found["num_steps"], found["lag_updates_max"]) == (3, 5)
    assert found["lag_updates_mean"] == pytest.approx(8 / 3)


def test_twice_is_once() -> None:
    """Hooks that are there already are not put on top of themselves."""
    learner = hooked(hooked(FakeLearner()))
    learner.update(batch_of(torch.tensor([0])))
    assert result_of(learner)["p"]["redis_state"]["num_updates"] == 1


def test_nothing_to_count() -> None:
    """Batches without stamps, without anything, and recorded data leave nothing in a result."""
    learner = hooked(FakeLearner())
    learner.update(None)
    learner.update(MultiAgentBatch({"p": SampleBatch({Columns.OBS: np.zeros(2)})}, env_steps=2))
    learner.update(batch_of(torch.tensor([0]), torch.tensor([False])))
    assert learner.metrics.stats == {}


def test_a_restored_learner() -> None:
    """After a restore ages are of what this learner has had since, and the rest is counted."""
    learner = hooked(FakeLearner())
    for _ in range(3):
        learner.update(batch_of(torch.tensor([0])))
    learner.set_state({WEIGHTS_SEQ_NO: 2})
    learner.metrics.reset()
    learner.update(batch_of(torch.tensor([1, 2, 3, 3])))
    found = result_of(learner)["p"]["redis_state"]
    # 1 was made before, and 3 is now in the making: these steps are of another 3.
    assert (found["num_steps"], found["num_steps_of_unknown_age"]) == (2, 3)
    assert found["lag_updates_max"] == 2


@pytest.mark.parametrize("name", ["_weights_seq_no", "_create_iterator_if_necessary"])
def test_a_learner_that_lacks_something(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Where a Learner is built otherwise, training goes on, and the log says what is missing."""

    class Other:
        def __init__(self) -> None:
            self._weights_seq_no = 0

        _create_iterator_if_necessary = None

    learner = Other()
    delattr(learner if name == "_weights_seq_no" else Other, name)
    with caplog.at_level(logging.WARNING, "redis_state_sync"):
        account_for_staleness(learner)
    assert [r.getMessage() for r in caplog.records] == [
        f"results will not say how stale the batches of Other are: it has no {name}"
    ]
    assert "after_gradient_based_update" not in vars(learner)


def test_a_batch_that_is_not_understood(caplog: pytest.LogCaptureFixture) -> None:
    """Training goes on when its batches can not be read, and the log says so once."""
    learner = hooked(FakeLearner())
    with caplog.at_level(logging.WARNING, "redis_state_sync"):
        for _ in range(3):
            learner.update(batch_of(torch.tensor([0, 0]), torch.tensor([True])))
    (record,) = caplog.records
    assert "stamps are (2,), their mask is (1,)" in record.getMessage()
    assert learner.hooked_updates == 3


def test_a_learner_can_still_be_pickled() -> None:
    """RLlib sends whole Learners to where recorded data are read; a copy counts for itself."""
    learner = hooked(FakeLearner())
    learner.update(batch_of(torch.tensor([0])))
    copy = pickle.loads(pickle.dumps(learner))
    for _ in range(2):
        copy.update(batch_of(torch.tensor([0])))
    assert result_of(learner)["p"]["redis_state"]["num_updates"] == 1
    assert result_of(copy)["p"]["redis_state"]["num_updates"] == 3


@given(
    st.lists(
        st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), max_size=4),
        min_size=1,
        max_size=3,
    ),
    st.lists(st.booleans(), min_size=12, max_size=12),
)
def test_means_are_over_all_updates(learners: list[Any], reduced: list[bool]) -> None:
    """However many updates a learner's results comprise, each update counts alike.

    RLlib's own means are means of the means that arrive.
    """
    root = MetricsLogger(root=True)
    expected = []
    reduce_after = iter(reduced)
    for batches in learners:
        learner = hooked(FakeLearner())
        for number, back in enumerate(batches, 1):
            stamps = [max(0, number - 1 - b) for b in back]
            expected.append(sum(number - s for s in stamps) / len(stamps))
            learner.update(batch_of(torch.tensor(stamps)))
            if next(reduce_after):
                root.aggregate([learner.metrics.reduce()], key="learners")
        root.aggregate([learner.metrics.reduce()], key="learners")
    for again in (False, True):
        result = root.compile().get("learners", {})
        summarise_lags(result)
        if again or not expected:  # A result begins anew.
            assert "redis_state" not in result.get("p", {})
        else:
            found = result["p"]["redis_state"]
            assert found["num_updates"] == len(expected)
            assert found["lag_updates_mean"] == pytest.approx(sum(expected) / len(expected))
