"""Where a Learner's own methods are watched: on the instance, for any Learner class.

`Learner.update` counts its number up, makes the batch iterator, goes over it in minibatches, and
calls `after_gradient_based_update`. IMPALA and APPO do so in a thread, by the unbound
`Learner.update`; the methods that it calls are looked up on the instance all the same (Ray 2.60).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from ray.rllib.core.columns import Columns
from ray.rllib.utils.metrics import WEIGHTS_SEQ_NO
from ray.rllib.utils.minibatch_utils import MiniBatchIteratorBase

from redis_state_sync.rllib.metrics import REDIS_STATE, UPDATE_LAGS
from redis_state_sync.rllib.staleness import MadeAt, lag_of

logger = logging.getLogger("redis_state_sync")

_ATTRIBUTE = "_redis_state_hooks"
_MAKE_ITERATOR = "_create_iterator_if_necessary"


def account_for_staleness(learner: Any) -> None:
    """Has a Learner log the lag of each batch. A function, so that it goes to learner actors.

    Nothing happens the second time. What a Learner lacks for it is said once, in the log.
    """
    if _ATTRIBUTE in vars(learner):
        return
    missing = [name for name in ("_weights_seq_no", _MAKE_ITERATOR) if not hasattr(learner, name)]
    if missing:
        _give_up(learner, f"it has no {' and no '.join(missing)}")
        return
    hooks = LearnerHooks(learner)
    setattr(learner, _ATTRIBUTE, hooks)
    hooks.install()


def _give_up(learner: Any, why: Any) -> None:
    logger.warning(
        "results will not say how stale the batches of %s are: %s", type(learner).__name__, why
    )


class LearnerHooks:
    """The hooks of one Learner.

    Args:
        learner: A built Learner.
        clock: Monotonic seconds; replaceable in tests.
    """

    def __init__(self, learner: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._learner = learner
        self._clock = clock
        self._made_at = MadeAt(learner._weights_seq_no, clock())
        self._make_iterator = getattr(learner, _MAKE_ITERATOR)
        self._after_update = learner.after_gradient_based_update
        self._set_state = learner.set_state
        self._broken = False

    def install(self) -> None:
        """Puts the hooks in place."""
        setattr(self._learner, _MAKE_ITERATOR, self.make_iterator)
        self._learner.after_gradient_based_update = self.after_gradient_based_update
        self._learner.set_state = self.set_state

    def make_iterator(self, *args: Any, **kwargs: Any) -> Any:
        """Ray's own, and notes the lag of the whole batch, once for all epochs and minibatches."""
        batches = self._make_iterator(*args, **kwargs)
        if not self._broken:
            try:
                self._account(batches)
            except Exception as error:
                # Numbers about training are not worth its end.
                self._broken = True
                _give_up(self._learner, repr(error))
        return batches

    def after_gradient_based_update(self, *args: Any, **kwargs: Any) -> None:
        """Ray's own, and notes that there are new weights."""
        self._after_update(*args, **kwargs)
        self._made_at.note(self._learner._weights_seq_no, self._clock())

    def set_state(self, *args: Any, **kwargs: Any) -> None:
        """Ray's own, and begins anew if the weights are others."""
        self._set_state(*args, **kwargs)
        number = self._learner._weights_seq_no
        if number != self._made_at.newest:
            self._made_at.restart(number, self._clock())

    def _account(self, batches: Any) -> None:
        now, learner = self._clock(), self._learner
        number = learner._weights_seq_no
        for module_id, stamps in _stamps(batches):
            lag = lag_of(stamps, number, self._made_at, now)
            if lag is not None:
                # One by one: Ray's means are of means, or of a window over several results.
                learner.metrics.log_value(
                    (module_id, REDIS_STATE, UPDATE_LAGS), lag.flat(), reduce="item_series"
                )


def _stamps(batches: Any) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """Module id and the stamps of its steps, -1 for those that are left out of the loss."""
    if isinstance(batches, MiniBatchIteratorBase):  # Not recorded data, nor nothing to train.
        for module_id, batch in batches._batch.policy_batches.items():  # type: ignore[attr-defined]
            if WEIGHTS_SEQ_NO in batch:
                yield module_id, _masked(batch[WEIGHTS_SEQ_NO], batch.get(Columns.LOSS_MASK))


def _masked(stamps: Any, mask: Any) -> npt.NDArray[Any]:
    if mask is not None and tuple(mask.shape) != tuple(stamps.shape):
        raise ValueError(f"stamps are {tuple(stamps.shape)}, their mask is {tuple(mask.shape)}")
    if not isinstance(stamps, torch.Tensor):
        return np.asarray(stamps) if mask is None else np.where(mask, stamps, -1)
    if mask is not None:
        stamps = torch.where(mask.bool(), stamps, -1)  # Before the one transfer from a GPU.
    return stamps.detach().cpu().numpy()  # type: ignore[no-any-return]
