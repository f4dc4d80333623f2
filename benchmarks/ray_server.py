"""The state server's class. Imports all of RLlib, as Ray's own does."""

from __future__ import annotations

import os

from ray.rllib.env.env_runner_state_server import EnvRunnerStateServer


class Server(EnvRunnerStateServer):
    """Ray's, which does not say where it runs."""

    def pids(self) -> tuple[int, int]:
        """The actor's process, and the one that started it: the raylet, which has the objects."""
        return os.getpid(), os.getppid()
