"""Names of the components of an EnvRunner's state; any other name is as good for other states."""

from __future__ import annotations

from redis_state_sync.errors import EncodeError

RL_MODULE = "rl_module"
ENV_TO_MODULE_CONNECTOR = "env_to_module_connector"
MODULE_TO_ENV_CONNECTOR = "module_to_env_connector"
COUNTERS = "counters"

MAX_NAME_LENGTH = 512


def is_name(name: object) -> bool:
    """Whether this can be a component's name.

    Names are shown in logs and may become those of files elsewhere: 1 to 512 printable characters
    that do not begin with a slash, and no ``..`` between slashes.
    """
    return (
        type(name) is str
        and 0 < len(name) <= MAX_NAME_LENGTH
        and name.isprintable()
        and not name.startswith("/")
        and ".." not in name.split("/")
    )


def check_name(name: object) -> None:
    """Raises `EncodeError` unless this can be a component's name."""
    if not is_name(name):
        raise EncodeError(
            f"component name {str(name)[:80]!r} is not a str of 1 to {MAX_NAME_LENGTH} printable "
            "characters without '..' between slashes"
        )


def rl_module(module_id: str) -> str:
    """The component of one RLModule."""
    return f"{RL_MODULE}/{module_id}"


def is_weights(component: str) -> bool:
    """Whether a component holds an RLModule's weights."""
    return component.startswith(f"{RL_MODULE}/")
