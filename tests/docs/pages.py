"""The Markdown pages of this repository, taken apart: code blocks, code spans, links, headings."""

from __future__ import annotations

import functools
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[2]
_PARSER = MarkdownIt("commonmark").enable("table")
_MARK = re.compile(r"\s*<!-- doc-test: (.*?) -->\s*")


@dataclass(frozen=True)
class Found:
    """Something on a page, and the line that it, or its paragraph, begins in."""

    page: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True)
class Block(Found):
    """A fenced code block. `mark` is what `<!-- doc-test: ... -->` right before it says."""

    language: str
    mark: str


def paths() -> list[Path]:
    """Every page, also those that are new."""
    globs = ("*.md", "docs/**/*.md", "deploy/**/*.md", "examples/**/*.md", "benchmarks/**/*.md")
    return sorted({path for glob in globs for path in ROOT.glob(glob)})


@functools.cache
def tracked() -> list[str]:
    """Files that git knows, or would take."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return sorted(set(listed.stdout.split("\n")) - {""})


def fail_if(wrong: list[str]) -> None:
    """Fails the test with all that is wrong, a line for each: page, line, and what."""
    if wrong:
        pytest.fail("\n".join(wrong), pytrace=False)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


PAGES = [name_of(path) for path in paths()]


@functools.cache
def _parsed(page: str) -> tuple[list[Block], list[Found], list[Found], list[str]]:
    """Blocks, code spans, links and headings."""
    blocks, spans, links, headings = [], [], [], []
    mark, line, in_heading = "", 0, False
    for token in _PARSER.parse((ROOT / page).read_text()):
        if token.map:
            line = token.map[0] + 1
        if token.type == "fence":
            blocks.append(Block(page, line, token.content, token.info.split(" ")[0], mark))
        said = _MARK.fullmatch(token.content) if token.type == "html_block" else None
        mark = said[1] if said else ""
        for child in token.children or []:
            if child.type == "code_inline":
                spans.append(Found(page, line, child.content))
            elif child.type in ("link_open", "image"):
                target = child.attrs.get("href") or child.attrs.get("src") or ""
                links.append(Found(page, line, str(target)))
        if in_heading:
            text = "".join(c.content for c in token.children or [] if c.type != "link_open")
            headings.append(text)
        in_heading = token.type == "heading_open"
    return blocks, spans, links, headings


def blocks(page: str, *languages: str) -> list[Block]:
    """The code blocks of a page in some languages; in all if none is named."""
    return [b for b in _parsed(page)[0] if not languages or b.language in languages]


def spans(page: str) -> list[Found]:
    """What stands between backticks within the text."""
    return _parsed(page)[1]


def links(page: str) -> list[Found]:
    """Targets of links and images."""
    return _parsed(page)[2]


def anchors(page: str) -> set[str]:
    """The anchors that GitHub makes of the page's headings."""
    found: dict[str, int] = {}
    result = set()
    for heading in _parsed(page)[3]:
        slug = re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-")
        count = found.get(slug, 0)
        found[slug] = count + 1
        result.add(f"{slug}-{count}" if count else slug)
    return result
