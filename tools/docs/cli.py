"""The reference of the command line in docs/cli.md, from what typer knows of each command."""

from __future__ import annotations

import enum
from collections import Counter
from typing import Any

import typer.main

from redis_state_sync.cli.app import app
from tools.docs.markers import cell, markdown


def commands() -> dict[str, Any]:
    """Command -> typer's object for it."""
    group: Any = typer.main.get_command(app)
    return {name: command for name, command in group.commands.items() if not command.hidden}


def _shared(found: dict[str, Any]) -> dict[str, Any]:
    """Options that most commands have, by their name: they are listed once."""
    options = [p for c in found.values() for p in c.params if p.param_type_name == "option"]
    counts = Counter((p.opts[0], p.help) for p in options)
    return {
        p.opts[0]: p for p in options if counts[p.opts[0], p.help] > len(found) / 2 and not p.hidden
    }


def _default(parameter: Any) -> str:
    value = parameter.default
    if callable(value) or value is None or isinstance(value, bool) or parameter.required:
        return ""
    return f"`{value.value if isinstance(value, enum.Enum) else value}`"


def _row(parameter: Any) -> str:
    name = ", ".join(f"`{text}`" for text in [*parameter.opts, *parameter.secondary_opts])
    if parameter.param_type_name == "argument":
        name = f"`{(parameter.metavar or parameter.name.upper()).strip('[]')}`"
    return f"| {name} | {_default(parameter)} | {cell(markdown(parameter.help or ''))} |"


def _usage(name: str, command: Any, shared: dict[str, Any]) -> str:
    words = ["redis-state-sync", name]
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            metavar = (parameter.metavar or parameter.name.upper()).strip("[]")
            words.append(metavar if parameter.required else f"[{metavar}]")
    own = any(p.param_type_name == "option" and p.opts[0] not in shared for p in command.params)
    return " ".join([*words, "[OPTIONS]"] if own else words)


def reference() -> str:
    """A section for each command, and one for the options that they share."""
    found = commands()
    shared = _shared(found)
    head = ["| | default | meaning |", "|---|---|---|"]
    parts = ["### Options of every command", "\n".join([*head, *map(_row, shared.values())])]
    for name, command in found.items():
        parts += [f"### `{name}`", f"`{_usage(name, command, shared)}`"]
        parts.append(markdown(command.help or ""))
        rows = [
            _row(p)
            for p in command.params
            if not p.hidden and (p.param_type_name == "argument" or p.opts[0] not in shared)
        ]
        if rows:
            parts.append("\n".join([*head, *rows]))
        without = sorted(shared.keys() - {o for p in command.params for o in p.opts})
        if without:
            parts.append(f"Without {', '.join(f'`{option}`' for option in without)}.")
    return "\n\n".join(parts)
