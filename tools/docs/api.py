"""The list of all public names in docs/api.md, from `__all__` and docstrings."""

from __future__ import annotations

import importlib
import inspect
import types
from typing import Any

from redis_state_sync import errors, events
from tools.docs.markers import cell, first_paragraph

# Module -> what it is for.
MODULES = {
    "redis_state_sync": "Learners and readers, with or without RLlib",
    "redis_state_sync.rllib": "RLlib; needs the extra `rllib`",
    "redis_state_sync.embedded": "A server of one's own; needs the extra `embedded`, or a binary",
    "redis_state_sync.testing": "[Tests of your own project](testing.md), which has the fixtures; "
    "needs the extra `testing`",
}
# Says the same of every method of a store.
_DULL = "As the inner store's"
NOT_EXPORTED = {"redis_state_sync.embedded": ["EmbeddedServer", "find_server"]}


def names_of(module: types.ModuleType) -> list[str]:
    """The public names of a module, sorted."""
    return sorted(NOT_EXPORTED.get(module.__name__) or module.__all__)


def _members(cls: type) -> list[tuple[str, Any]]:
    """Public methods and properties that the class itself defines and explains, in its order."""
    kinds = (types.FunctionType, property, classmethod, staticmethod)
    return [
        (name, value)
        for name, value in vars(cls).items()
        if not name.startswith("_")
        and isinstance(value, kinds)
        and not (inspect.getdoc(value) or "").startswith(_DULL)
    ]


def _row(name: str, said: str | None) -> str:
    return f"| `{name}` | {cell(first_paragraph(said))} |"


def _section(module: types.ModuleType) -> list[str]:
    names = names_of(module)
    rows, details = ["| name | |", "|---|---|"], []
    for name in names:
        value = getattr(module, name)
        said = inspect.getdoc(value) if callable(value) else "a constant"
        rows.append(_row(name, said))
        if inspect.isclass(value) and not issubclass(value, Exception) and _members(value):
            details += [
                f"### `{name}`",
                "\n".join(
                    ["| member | |", "|---|---|"]
                    + [_row(member, inspect.getdoc(what)) for member, what in _members(value)]
                ),
            ]
    return ["\n".join(rows), *details]


def _errors() -> str:
    rows = ["| error | base | category | when |", "|---|---|---|---|"]
    for name, value in vars(errors).items():
        if inspect.isclass(value) and issubclass(value, errors.RedisStateSyncError):
            bases = ", ".join(f"`{base.__name__}`" for base in value.__bases__)
            said = cell(first_paragraph(inspect.getdoc(value)))
            rows.append(f"| `{name}` | {bases} | `{value.category}` | {said} |")
    return "\n".join(rows)


def _events() -> str:
    rows = ["| event | fields | |", "|---|---|---|"]
    for event in events.Event.__args__:
        fields = ", ".join(f"`{name}`" for name in event.__slots__)
        said = cell(first_paragraph(inspect.getdoc(event)))
        rows.append(f"| `{event.__name__}` | {fields} | {said} |")
    return "\n".join(rows)


def listing() -> str:
    """A section for each module, then all errors and all events."""
    parts = []
    for name, purpose in MODULES.items():
        module = importlib.import_module(name)
        parts += [f"## `{name}`", f"{purpose}.", *_section(module)]
    parts += ["## Errors", "All are in `redis_state_sync.errors`.", _errors()]
    parts += ["## Events", "What observers are told, from `redis_state_sync.events`.", _events()]
    return "\n\n".join(parts)
