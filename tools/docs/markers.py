"""Text between markers of a page, which is made from the code."""

from __future__ import annotations

import re


def replaced(page: str, part: str, text: str) -> str:
    """The page with what is between the markers of `part` replaced by `text`.

    Args:
        page: The whole page. The markers are ``<!-- generated: PART, by `make docs` -->`` and
            ``<!-- /generated -->``, each on a line of its own.
        part: Which pair of markers.
        text: What stands between them, without empty lines around it.

    Raises:
        ValueError: If the page does not have that pair exactly once.
    """
    begin = f"<!-- generated: {part}, by `make docs` -->\n"
    end = "<!-- /generated -->\n"
    pattern = re.compile(f"(?<={re.escape(begin)}).*?(?={re.escape(end)})", re.S)
    changed, count = pattern.subn(lambda _: f"\n{text}\n\n", page)
    if count != 1:
        raise ValueError(f"{count} places for {begin.strip()!r} ... {end.strip()!r}, not one")
    return changed


def cell(text: str) -> str:
    """Text as a cell of a table, on one line."""
    return " ".join(text.split()).replace("|", r"\|")


def markdown(docstring: str) -> str:
    """The same text with Markdown's code spans in place of reStructuredText's."""
    return docstring.replace("``", "`")


def first_paragraph(docstring: str | None) -> str:
    """The first paragraph of a docstring, on one line; empty if there is none."""
    text = markdown((docstring or "").strip()).split("\n\n")[0]
    return " ".join(text.split()).removesuffix("::").rstrip()
