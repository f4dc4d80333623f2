"""The part of an EnvRunner that takes weights, with RLlib's own code and without an environment."""

from __future__ import annotations

from typing import Any

import torch
from ray.rllib.core.rl_module.torch import TorchRLModule
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner

from benchmarks.states import shapes
from redis_state_sync import Snapshot
from redis_state_sync.rllib.apply import apply_snapshot


class Net(TorchRLModule):
    """An RLModule of any size, whose parameters are those of `states.shapes`."""

    def setup(self) -> None:
        """Makes the parameters; pages are touched, so that none is fresh when time counts."""
        for name, shape in shapes(self.model_config["nbytes"]).items():
            self.register_parameter(name, torch.nn.Parameter(torch.ones(shape)))

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        raise NotImplementedError("only its weights are of interest")


class Runner:
    """What `SingleAgentEnvRunner.set_state` touches of its object.

    Args:
        nbytes: Size of its module.
    """

    # RLlib's own, as it is: for another one our `apply_snapshot` would not point at mapped weights.
    set_state = SingleAgentEnvRunner.set_state

    def __init__(self, nbytes: int) -> None:
        self.module = Net(inference_only=True, model_config={"nbytes": nbytes})
        self._env_to_module = None
        self._module_to_env = None
        self._weights_seq_no = 0
        self.num_env_steps_sampled_lifetime = 0

    def apply(self, snapshot: Snapshot) -> None:
        """Ours."""
        apply_snapshot(self, self.set_state, snapshot)

    def use(self) -> float:
        """Reads every weight once, as a forward pass does: what is mapped is paid for here."""
        with torch.no_grad():
            return sum(float(parameter.sum()) for parameter in self.module.parameters())

    def first_weight(self) -> float:
        """By which it is told that a state was applied."""
        return float(self.module.weight_0.detach().flatten()[0])
