"""An EnvRunner whose learner publishes while it samples, and a check of each step it recorded."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import gymnasium as gym
import numpy as np
import torch
from ray.rllib.algorithms.appo import APPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModule
from ray.rllib.env.multi_agent_env import MultiAgentEnv

from redis_state_sync import StatePublisher
from redis_state_sync.rllib import with_redis_state
from redis_state_sync.rllib.env_runners import (
    RedisMultiAgentEnvRunner,
    RedisSingleAgentEnvRunner,
)
from redis_state_sync.rllib.states import to_components

WAIT = 20.0


class TakingTurns(MultiAgentEnv):
    """Two agents: one acts in every step, the other in every third, and not at the end."""

    def __init__(self, config: Any = None) -> None:
        super().__init__()
        self.agents = self.possible_agents = ["often", "seldom"]
        box, two = gym.spaces.Box(-10, 10, (4,), np.float32), gym.spaces.Discrete(2)
        self.observation_spaces = dict.fromkeys(self.agents, box)
        self.action_spaces = dict.fromkeys(self.agents, two)
        self._rng = np.random.default_rng(7)
        self._t = 0

    def _seen(self) -> dict[str, Any]:
        agents = ["often"] if self._t % 3 else ["often", "seldom"]
        return {agent: self._rng.standard_normal(4).astype(np.float32) for agent in agents}

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self._t = 0
        return self._seen(), {}

    def step(self, actions: dict[str, Any]) -> Any:
        self._t += 1
        over = {"__all__": self._t == 11}
        seen = self._seen()
        return seen, dict.fromkeys(seen, 1.0), over, {"__all__": False}, {}


class Flight:
    """One EnvRunner in this process, and a publisher of what it is to act with.

    Args:
        url: The store.
        multi_agent: Whether there are two agents, with a module each.
        hidden: Width of the modules' two hidden layers.
        lstm: Whether they are recurrent.
        num_envs: How many envs are stepped at once.
        every: Publish before one step in so many, in the mean.
        **settings: See `Settings`.
    """

    def __init__(
        self,
        url: str,
        *,
        multi_agent: bool = False,
        hidden: int = 8,
        lstm: bool = False,
        num_envs: int = 1,
        every: int = 4,
        connector: Any = None,
        worker_index: int = 1,
        evaluation: bool = False,
        env: Any = "CartPole-v1",
        **settings: Any,
    ) -> None:
        config = (
            APPOConfig()
            .environment(TakingTurns if multi_agent else env)
            .env_runners(
                num_env_runners=1,
                num_envs_per_env_runner=num_envs,
                rollout_fragment_length=50,
                env_to_module_connector=connector,
                create_env_on_local_worker=not worker_index,
            )
            .rl_module(
                model_config=DefaultModelConfig(
                    fcnet_hiddens=[hidden, hidden], use_lstm=lstm, lstm_cell_size=8, max_seq_len=10
                )
            )
            .debugging(seed=3)
        )
        if multi_agent:
            config.multi_agent(
                policies={"often", "seldom"}, policy_mapping_fn=lambda agent, *a, **k: agent
            )
        self.namespace = f"flight/{random.getrandbits(64)}"
        config = with_redis_state(config, url, namespace=self.namespace, **settings)
        config.in_evaluation = evaluation
        cls = RedisMultiAgentEnvRunner if multi_agent else RedisSingleAgentEnvRunner
        # Not methods: a config is copied, and this object would be, too.
        config.callbacks(
            on_episode_step=lambda **kwargs: self._on_step(**kwargs),
            on_episode_start=lambda **kwargs: self._on_start(),
        )
        self.multi_agent, self.num_envs = multi_agent, num_envs
        self.rng, self.every = random.Random(5), every
        self.on_step: Callable[[Any], None] | None = None
        self.versions: dict[int, dict[str, Any]] = {}
        self.seen: list[int] = []
        self.starts = 0
        self.seq_no = 0
        # There is no Ray that could say whose EnvRunner this is.
        with patch("redis_state_sync.rllib.env_runners.writer_id_of", return_value=None):
            self.runner: Any = cls(config=config, worker_index=worker_index)
        subscriber = self.runner._redis_state_subscriber
        if subscriber is not None:
            self.publisher = StatePublisher(
                subscriber.store,
                self.namespace,
                writer_id=subscriber.writer or "w",
                heartbeat_s=3600,
            )

    def state(self) -> dict[str, Any]:
        """Module id -> other weights than any before."""
        module = self.runner.module
        modules = dict(module.items()) if isinstance(module, MultiRLModule) else {None: module}
        rng = np.random.default_rng(self.seq_no)
        return {
            mid: {
                name: rng.normal(0, 0.5, np.shape(value)).astype(np.float32)
                for name, value in m.get_state().items()
            }
            for mid, m in modules.items()
        }

    def publish(self, **more: Any) -> None:
        """A new version, with weights for which every logit differs."""
        self.seq_no += 1
        state = self.state()
        self.versions[self.seq_no] = state
        weights = state if self.multi_agent else state[None]
        components, _ = to_components({"rl_module": weights, **more}, multi_agent=self.multi_agent)
        self.publisher.publish(components, weights_seq_no=self.seq_no).wait(WAIT)

    def _on_start(self) -> None:
        self.starts += 1

    def _on_step(self, *, env_runner: Any, env_index: int, **kwargs: Any) -> None:
        self.seen.append(env_runner._weights_seq_no)
        if self.on_step is not None:
            self.on_step(env_runner)
        elif env_index == 0 and self.rng.randrange(self.every) == 0:
            self.publish()

    def sample(self, steps: int = 120) -> list[Any]:
        return list(self.runner.sample(num_timesteps=steps, random_actions=False))

    def close(self) -> None:
        self.publisher.close()
        self.runner.stop()


def stamps(episodes: list[Any], agent: str | None = None) -> list[np.ndarray[Any, Any]]:
    """For each episode (of an agent), the numbers of the versions that its steps were made with."""
    parts = [e if agent is None else e.agent_episodes.get(agent) for e in episodes]
    return [np.asarray(p.get_extra_model_outputs("weights_seq_no")) for p in parts if p is not None]


def assert_honest(flight: Flight, episodes: list[Any]) -> int:
    """Each step's outputs are those of just the version that it is stamped with. Returns steps."""
    checked = 0
    for episode in episodes:
        agents = episode.agent_episodes if flight.multi_agent else {None: episode}
        for agent, part in agents.items():
            checked += _check(flight, agent, part)
    return checked


def _check(flight: Flight, agent: str | None, part: Any) -> int:
    module = flight.runner.module
    module = module[agent] if agent is not None else module
    own = copy.deepcopy(module.get_state())
    count = len(part)
    numbers = np.asarray(part.get_extra_model_outputs("weights_seq_no"))
    logits = np.asarray(part.get_extra_model_outputs("action_dist_inputs"))
    logp = np.asarray(part.get_extra_model_outputs("action_logp"))
    assert len(numbers) == len(logits) == count
    observations = np.asarray(part.get_observations(slice(0, count)), np.float32)
    actions = np.asarray(part.get_actions())
    stateful = module.is_stateful()
    outs = part.get_extra_model_outputs("state_out") if stateful else None
    for number in np.unique(numbers):
        state = flight.versions[int(number)][agent]
        module.set_state(state)
        for step in np.flatnonzero(numbers == number):
            batch: dict[str, Any] = {"obs": torch.from_numpy(observations[step])[None]}
            if stateful:
                if step:
                    inner = {k: np.asarray(v)[step - 1] for k, v in outs.items()}
                elif part.t_started == 0:
                    inner = module.get_initial_state()
                else:
                    continue  # It goes on from what an earlier chunk ended with.
                batch["state_in"] = {k: torch.as_tensor(v)[None] for k, v in inner.items()}
                batch["obs"] = batch["obs"][:, None]
            with torch.no_grad():
                got = module.forward_exploration(batch)["action_dist_inputs"].numpy().reshape(-1)
            np.testing.assert_allclose(got, logits[step], rtol=1e-4, atol=1e-4)
            expected = torch.log_softmax(torch.from_numpy(got), -1)[int(actions[step])]
            np.testing.assert_allclose(expected, logp[step], rtol=1e-3, atol=1e-3)
    module.set_state(own)
    return count
