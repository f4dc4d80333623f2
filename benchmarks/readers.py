"""Who fetches and applies in a group, in processes of their own.

Ours apply as our EnvRunners do, by `apply_snapshot`. Ray's do what `TorchRLModule.set_state`
of RLlib does, with torch alone: `load_state_dict`, which copies arrays into the parameters. So
many actors that each import all of RLlib would not fit into memory; ours are forked, and share it.
The section `fetch` uses RLlib's own code for both.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks import arms
from benchmarks.ray_session import MODULE_ID, RL_MODULE, SEQ_NO
from benchmarks.states import shapes

COMPONENT = f"rl_module/{MODULE_ID}"


@dataclass(frozen=True)
class Applied:
    """By one reader, by the clock that all processes share.

    Args:
        at: When it had applied what is new.
        used_at: When it had read every weight once, as a forward pass does.
        weight: By which it is told that the right ones have arrived.
    """

    at: float
    used_at: float
    weight: float


class Module(torch.nn.Module):
    """Parameters of `nbytes` in all."""

    def __init__(self, nbytes: int) -> None:
        super().__init__()
        for name, shape in shapes(nbytes).items():
            self.register_parameter(name, torch.nn.Parameter(torch.ones(shape)))

    def load(self, weights: dict[str, np.ndarray[Any, Any]]) -> None:
        """Takes weights as RLlib's modules do."""
        self.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()})


class _Reader:
    def __init__(self, gun: str) -> None:
        torch.set_num_threads(1)
        self._gun = socket.socket(socket.AF_UNIX)
        self._gun.connect(gun)

    def idle(self) -> None:
        """Returns when the reader is made."""

    def make_module(self, nbytes: int) -> None:
        """Makes room for a state of this size."""
        raise NotImplementedError

    def wait_and_apply(self) -> Applied:
        """Waits for the shot, then asks until there is something new, applies and uses it."""
        self._gun.recv(1)
        while not self._refresh():
            time.sleep(0.001)
        at = time.monotonic()
        parameters = list(self._parameters())
        with torch.no_grad():
            for parameter in parameters:
                parameter.sum()
        used_at = time.monotonic()
        return Applied(at, used_at, float(parameters[0].detach().flatten()[0]))

    def _refresh(self) -> bool:
        raise NotImplementedError

    def _parameters(self) -> Iterator[torch.nn.Parameter]:
        raise NotImplementedError


class Reader(_Reader):
    """One of ours."""

    def __init__(self, arm: str, places: arms.Places, namespace: str, gun: str) -> None:
        super().__init__(gun)
        self._subscriber = arms.subscriber(arm, places, namespace)
        self._runner: Any = None

    def make_module(self, nbytes: int) -> None:
        """In what is there of an EnvRunner."""
        from benchmarks.runner import Runner

        self._runner = Runner(nbytes)

    def _refresh(self) -> bool:
        return self._subscriber.refresh(self._runner.apply) is not None

    def _parameters(self) -> Iterator[torch.nn.Parameter]:
        return iter(self._runner.module.parameters())


class RayReader(_Reader):
    """One of Ray's: pulls as `SingleAgentEnvRunner.sample`, applies as its `set_state`.

    It takes no state up to `seq_no`.
    """

    def __init__(self, handle: Any, seq_no: int, gun: str) -> None:
        import ray

        super().__init__(gun)
        self._get = ray.get
        self._handle = handle
        self._seq_no = seq_no
        self._module = Module(0)

    def make_module(self, nbytes: int) -> None:
        """In torch alone."""
        self._module = Module(nbytes)

    def _refresh(self) -> bool:
        state = self._get(self._handle.pull_if_newer.remote(self._seq_no))
        if state is None:
            return False
        self._module.load(self._get(state[RL_MODULE])[MODULE_ID])
        self._seq_no = state[SEQ_NO]
        return True

    def _parameters(self) -> Iterator[torch.nn.Parameter]:
        return self._module.parameters()
