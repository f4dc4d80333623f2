"""What a check of `doctor` says when something is not as it should be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

from redis_state_sync.cli.facts import Facts


class Level(str, Enum):
    """How bad it is."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be.

    Args:
        level: How bad.
        name: Of the check.
        text: What there is, and what it leads to.
        remedy: What to do.
    """

    level: Level
    name: str
    text: str
    remedy: str


Check = Callable[[Facts], Iterator[Finding]]
