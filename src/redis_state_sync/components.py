"""Names of the components of an EnvRunner's state; any other name is as good for other states."""

from __future__ import annotations

RL_MODULE = "rl_module"
ENV_TO_MODULE_CONNECTOR = "env_to_module_connector"
MODULE_TO_ENV_CONNECTOR = "module_to_env_connector"
COUNTERS = "counters"


def rl_module(module_id: str) -> str:
    """The component of one RLModule."""
    return f"{RL_MODULE}/{module_id}"


def is_weights(component: str) -> bool:
    """Whether a component holds an RLModule's weights."""
    return component.startswith(f"{RL_MODULE}/")
