"""The table of settings of docs/configuration.md, from the dataclass and its docstring."""

from __future__ import annotations

import dataclasses
import inspect
import re

from redis_state_sync import Settings
from tools.docs.markers import cell, markdown

# Where there is more to read. A setting that is not here has its row alone.
SECTIONS = {
    "url": "#url-options",
    "password_env": "#environment-variables",
    "credential_provider": "#environment-variables",
    "max_staleness_s": "#limits-of-staleness",
    "max_staleness_versions": "#limits-of-staleness",
    "on_stale": "#limits-of-staleness",
    "stale_wait_s": "#limits-of-staleness",
    "node_cache_bytes": "#shared-memory",
    "signed": "../SECURITY.md#signing",
    "refresh": "#refreshing-in-flight",
    "refresh_every_steps": "#refreshing-in-flight",
    "refresh_every_s": "#refreshing-in-flight",
    "prefetch": "#refreshing-in-flight",
    "role": "sharing.md#followers",
    "resume": "sharing.md#handing-over",
    "first_version_timeout_s": "sharing.md#followers",
}


def meanings() -> dict[str, str]:
    """Setting -> what the docstring of `Settings` says of it, in its ``Args:`` section."""
    text = inspect.getdoc(Settings) or ""
    section = text.partition("\nArgs:\n")[2].partition("\n\n")[0]
    entries = re.split(r"^ {4}(\w+): ", section, flags=re.M)[1:]
    return {
        name: markdown(" ".join(meaning.split()))
        for name, meaning in zip(entries[::2], entries[1::2], strict=True)
    }


def type_of(annotation: str) -> str:
    """An annotation as words: ``int | None`` is `int` or `None`."""
    choices = re.fullmatch(r"Literal\[(.*)\]", annotation)
    parts = choices[1].split(", ") if choices else annotation.split(" | ")
    return " or ".join(f"`{part}`" for part in parts)


def table() -> str:
    """The table: name, type, default, meaning.

    Raises:
        KeyError: If the docstring says nothing about a setting.
    """
    said = meanings()
    rows = ["| setting | type | default | meaning |", "|---|---|---|---|"]
    for field in dataclasses.fields(Settings):
        meaning = said[field.name]
        if field.name in SECTIONS:
            meaning += f" [More]({SECTIONS[field.name]})"
        cells = (f"`{field.name}`", type_of(str(field.type)), f"`{field.default!r}`", meaning)
        rows.append(f"| {' | '.join(map(cell, cells))} |")
    return "\n".join(rows)
