"""What a PromQL expression asks for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import promql_parser


@dataclass(frozen=True)
class Selector:
    """One metric that is asked for.

    Args:
        name: Its time series' name.
        labels: Those that are compared with something.
        over_time: Whether a span of time is asked for.
    """

    name: str
    labels: frozenset[str]
    over_time: bool


def selectors(text: str) -> list[Selector]:
    """All that an expression asks for; raises if it is none."""
    found = []
    for node in _walk(promql_parser.parse(text)):
        over_time = isinstance(node, promql_parser.MatrixSelector)
        if over_time:
            node = node.vector_selector
        elif not isinstance(node, promql_parser.VectorSelector):
            continue
        assert node.name, f"{text}: by a name, so that it can be checked"
        labels = frozenset(matcher.name for matcher in node.matchers.matchers)
        found.append(Selector(node.name, labels, over_time))
    return found


def groupings(text: str) -> set[str]:
    """The labels by which an expression groups and matches."""
    found: set[str] = set()
    for node in _walk(promql_parser.parse(text)):
        modifier = getattr(node, "modifier", None)
        for part in (modifier, getattr(modifier, "matching", None)):
            found.update(getattr(part, "labels", None) or ())
    return found


def _walk(node: Any) -> Iterator[Any]:
    yield node
    children = [getattr(node, name, None) for name in ("expr", "lhs", "rhs", "param")]
    for child in [*children, *(getattr(node, "args", None) or ())]:
        if hasattr(child, "prettify"):
            yield from _walk(child)
