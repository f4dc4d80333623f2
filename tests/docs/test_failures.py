"""docs/failures.md names faults, tests, categories and words that there really are."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from redis_state_sync import errors
from tests.chaos.faults import REGISTRY

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
PAGE = (ROOT / "docs" / "failures.md").read_text()


def rows() -> list[list[str]]:
    """The cells of every row of a table."""
    lines = [line for line in PAGE.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if row[0] != "what fails"]


def quoted(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def categories() -> set[str]:
    return {
        value.category
        for _, value in inspect.getmembers(errors, inspect.isclass)
        if issubclass(value, errors.RedisStateSyncError)
    }


def test_every_line_was_tried() -> None:
    """Each line names faults of the chaos suite or files of tests that exist."""
    for row in rows():
        named = quoted(row[5])
        assert named, row[0]
        for name in named:
            assert name in REGISTRY or (TESTS / name).is_file(), name


def test_every_fault_has_a_line() -> None:
    """No fault that the chaos suite injects is missing."""
    named = set(quoted(PAGE))
    assert set(REGISTRY) - named == set()


def test_categories_exist() -> None:
    """What the page calls a category is one that is counted."""
    for row in rows():
        assert set(quoted(row[3])) <= categories(), row[0]


def test_all_categories_are_explained() -> None:
    """docs/metrics.md lists every category that can be counted."""
    text = (ROOT / "docs" / "metrics.md").read_text()
    section = text.partition("## Failure categories")[2].partition("##")[0]
    assert set(quoted(section)) == categories()


def test_words_are_logged() -> None:
    """Words that the page quotes from the log are in the code."""
    code = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    code = re.sub(r'"\s*\n\s*f?"', "", code)  # Literals that go on in the next line.
    words = [n for n in quoted(PAGE) if " " in n and n[0].islower() and n != "make soak"]
    assert len(words) > 6
    for phrase in words:
        assert phrase in code, phrase
