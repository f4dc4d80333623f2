"""docs/cases.md says truly which test covers which case."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
PAGE = TESTS.parent / "docs" / "cases.md"

# The numbers of the list of faults; those that are missing were never on it.
CASES = {
    *(1, 2, 4, 5, 6, 7, 9, 10, 11, 13, 14, 15, 16, 17, 19, 21, 22, 23, 24, 25, 27, 28, 29, 30),
    *(32, 33, 34, 35, 36, 37, 38, 40, 42, 44, 45, 47, 48, 49, 50, 52, 53, 55, 56, 58, 59, 60, 61),
    *(63, 64, 66, 67, 68, 69, 71, 72, 73, 74, 75, 76, 77, 79, 80, 82, 83, 84, 86, 87, 89, 90, 91),
    *(93, 94, 96, 97, 98, 99, 100, 102, 104, 105, 107, 109, 110, 112),
}


def table() -> dict[int, tuple[list[str], str]]:
    """Case -> the tests that its row names, and its remarks."""
    rows = re.findall(r"^\| C(\d+) \| [^|]{10,} \| ([^|]+) \|([^|]*)\|$", PAGE.read_text(), re.M)
    assert len(rows) == len({number for number, _, _ in rows})
    return {
        int(number): (re.findall(r"`([\w/]+\.py::\w+)`", tests), remarks.strip())
        for number, tests, remarks in rows
    }


def cases_named() -> dict[str, set[int]]:
    """Every test function, and the cases that its docstring names."""
    found = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                numbers = re.findall(r"\bC(\d+)\b", ast.get_docstring(node) or "")
                name = f"{path.relative_to(TESTS)}::{node.name}"
                found[name] = {int(number) for number in numbers}
    return found


def test_every_case_has_a_row() -> None:
    """Each of the 84 cases is in the table, with a test or with the reason why there is none."""
    assert len(CASES) == 84
    rows = table()
    assert rows.keys() == CASES
    for number, (tests, remarks) in rows.items():
        assert tests or re.search(r"^(Not covered|Does not apply): ", remarks), number


def test_every_named_test_covers_its_case() -> None:
    """Each test of the table exists, and its docstring names the case."""
    named = cases_named()
    wrong = [
        (number, test)
        for number, (tests, _) in table().items()
        for test in tests
        if number not in named.get(test, set())
    ]
    assert wrong == []


def test_no_test_names_an_unknown_case() -> None:
    """No docstring names a case that is not in the table, or a covered case has no test there."""
    rows = table()
    for test, numbers in cases_named().items():
        for number in numbers:
            assert number in rows, (test, number)
            assert rows[number][0], (test, number)
