"""A task that numpy alone can learn: CartPole, solved by the cross-entropy method.

Dynamics as in Barto, Sutton and Anderson, "Neuronlike adaptive elements that can solve difficult
learning control problems" (1983), with the limits of Gymnasium's CartPole-v1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

OBSERVATION_SIZE = 4
MAX_STEPS = 500
_GRAVITY, _CART_MASS, _POLE_MASS, _HALF_POLE = 9.8, 1.0, 0.1, 0.5
_FORCE, _DT = 10.0, 0.02
_MAX_X, _MAX_ANGLE = 2.4, np.deg2rad(12)
_MASS = _CART_MASS + _POLE_MASS
# Fast enough to learn in seconds, slow enough to watch.
_STEP = 0.06
_ELITE = 0.25
_LEAST_STD = 0.05


def play(weights: Array, rng: np.random.Generator) -> Array:
    """Plays one episode for each policy, all at the same time.

    Args:
        weights: ``(policies, 4)``: push right if ``observation @ weights > 0``.
        rng: For the initial states.

    Returns:
        The return of each: the number of steps until the pole fell, at most 500.
    """
    state = rng.uniform(-0.05, 0.05, size=(OBSERVATION_SIZE, len(weights)))
    returns = np.zeros(len(weights))
    alive = np.ones(len(weights), dtype=bool)
    for _ in range(MAX_STEPS):
        returns += alive
        force = np.where(np.einsum("ij,ji->i", weights, state) > 0, _FORCE, -_FORCE)
        state = _step(state, force)
        alive &= (np.abs(state[0]) < _MAX_X) & (np.abs(state[2]) < _MAX_ANGLE)
        if not alive.any():
            break
    return returns


def _step(state: Array, force: Array) -> Array:
    x, velocity, angle, spin = state
    sin, cos = np.sin(angle), np.cos(angle)
    push = (force + _POLE_MASS * _HALF_POLE * spin**2 * sin) / _MASS
    spin_up = (_GRAVITY * sin - cos * push) / (
        _HALF_POLE * (4.0 / 3.0 - _POLE_MASS * cos**2 / _MASS)
    )
    speed_up = push - _POLE_MASS * _HALF_POLE * spin_up * cos / _MASS
    return np.stack(
        [x + _DT * velocity, velocity + _DT * speed_up, angle + _DT * spin, spin + _DT * spin_up]
    )


@dataclass
class Policy:
    """A normal distribution over linear policies: what the learner publishes.

    Args:
        mean: ``(4,)`` float64.
        std: ``(4,)`` float64.
    """

    mean: Array
    std: Array

    @classmethod
    def initial(cls) -> Policy:
        """Knows nothing: pushes in any direction are as likely."""
        return cls(np.zeros(OBSERVATION_SIZE), np.ones(OBSERVATION_SIZE))

    def sample(self, count: int, rng: np.random.Generator) -> Array:
        """Draws ``(count, 4)`` weights."""
        drawn: Array = rng.normal(self.mean, self.std, size=(count, OBSERVATION_SIZE))
        return drawn

    def improved(self, weights: Array, returns: Array) -> Policy:
        """One step of the cross-entropy method: towards the best quarter of what was tried.

        Args:
            weights: ``(policies, 4)``, drawn from this or from a slightly older distribution.
            returns: ``(policies,)``.
        """
        best = weights[np.argsort(returns)[-max(2, int(len(weights) * _ELITE)) :]]
        return Policy(
            self.mean + _STEP * (best.mean(axis=0) - self.mean),
            np.maximum(self.std + _STEP * (best.std(axis=0) - self.std), _LEAST_STD),
        )
