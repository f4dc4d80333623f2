"""Puts what was made into pages: between markers, and never by hand."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

_MARKED = re.compile(r"(<!-- bench:([\w-]+) -->\n).*?(<!-- /bench -->)", re.S)


def fill(text: str, made: Mapping[str, str]) -> str:
    """A page with those of its blocks made anew that are in `made`; others stay as they are."""
    return _MARKED.sub(
        lambda m: f"{m[1]}{made[m[2]]}\n{m[3]}" if m[2] in made else m[0],
        text,
    )


def names_in(text: str) -> list[str]:
    """The blocks that a page has."""
    return [name for _, name, _ in _MARKED.findall(text)]


def fill_pages(root: Path, pages: Sequence[str], made: Mapping[str, str]) -> list[Path]:
    """Fills pages in; returns what was written."""
    written = []
    for page in pages:
        path = root / page
        path.write_text(fill(path.read_text(), made))
        written.append(path)
    return written
