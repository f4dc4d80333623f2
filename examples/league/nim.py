"""The game: who takes the last stone wins. Each takes one, two or three in turn."""

import random

import gymnasium as gym
import numpy as np
from ray.rllib.env.multi_agent_env import MultiAgentEnv

STONES = 17
MOST = 3
PLAYERS = ("main", "opponent")


class Nim(MultiAgentEnv):
    """Who leaves a multiple of four wins against any play, so there is something to learn.

    An observation has a one at the number of stones that are left: shape (18,), float32. Of a
    player who takes more stones than there are, all that are there are taken.
    """

    def __init__(self, config=None):
        super().__init__()
        self.agents = self.possible_agents = list(PLAYERS)
        one_hot = gym.spaces.Box(0.0, 1.0, (STONES + 1,), np.float32)
        self.observation_spaces = dict.fromkeys(PLAYERS, one_hot)
        self.action_spaces = dict.fromkeys(PLAYERS, gym.spaces.Discrete(MOST))
        self._random = random.Random()
        self._left = 0

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self._random.seed(seed)
        self._left = STONES
        first = self._random.choice(PLAYERS)
        return {first: self._seen()}, {}

    def step(self, actions):
        ((player, action),) = actions.items()
        other = PLAYERS[1 - PLAYERS.index(player)]
        self._left -= min(int(action) + 1, self._left)
        over = self._left == 0
        seen = dict.fromkeys(PLAYERS, self._seen()) if over else {other: self._seen()}
        rewards = {player: 1.0, other: -1.0} if over else {}
        return seen, rewards, {"__all__": over}, {"__all__": False}, {}

    def _seen(self):
        return np.eye(STONES + 1, dtype=np.float32)[self._left]
