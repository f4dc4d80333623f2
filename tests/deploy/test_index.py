"""No file of `deploy/` goes untested or unmentioned: both lists are computed."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

from tests.deploy.server import DEPLOY
from tests.deploy.test_repository import files

ROOT = DEPLOY.parent
FILES = sorted(path.relative_to(DEPLOY) for path in files() if DEPLOY in path.parents)
# Files that tests find by looking for all of their kind: pattern -> the test that does.
FOUND = {
    "**/*.md": ("tests/docs/pages.py", '"deploy/**/*.md"'),
    "**/*.sh": ("tests/deploy/test_scripts.py", 'DEPLOY.rglob("*.sh")'),
    "compose/compose*.yaml": ("tests/deploy/test_compose.py", 'FOLDER.glob("compose*.yaml")'),
    "docker/*": ("tests/deploy/test_docker.py", "for path in FOLDER.iterdir()"),
    "kubernetes/*/*": ("tests/deploy/kubernetes.py", 'FOLDER.glob("*/kustomization.yaml")'),
    "monitoring/grafana/provisioning/*/*": (
        "tests/deploy/test_monitoring_stack.py",
        '(provisioning / "dashboards").iterdir()',
    ),
}


@functools.cache
def code_of_tests() -> dict[str, str]:
    """All tests but this one, without comments and docstrings: what is only told is not tested."""
    found = {}
    for path in sorted((ROOT / "tests").rglob("*.py")):
        if path != Path(__file__):
            tree = ast.parse(path.read_text())
            for node in ast.walk(tree):
                body = getattr(node, "body", None)
                first = body[0] if isinstance(body, list) and body else None
                if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                    first.value = ast.Constant(...)
            found[str(path.relative_to(ROOT))] = ast.unparse(tree)
    return found


def looked_at_by(path: Path) -> list[str]:
    """The tests that name a file, by its own name or by what they look for."""
    named = [
        name
        for name, text in code_of_tests().items()
        if re.search(rf"(?<![\w.-]){re.escape(path.name)}(?![\w.-])", text)
    ]
    for pattern, (test, how) in FOUND.items():
        if path.match(pattern):
            named.append(test)
            assert how in (ROOT / test).read_text(), f"{test} no longer looks for {pattern}"
    return named


@pytest.mark.parametrize("path", FILES, ids=str)
def test_every_file_has_a_test(path: Path) -> None:
    """Each file is named by the code of a test, or is one of those that a test looks for."""
    assert looked_at_by(path), f"no test for deploy/{path}"


@pytest.mark.parametrize("path", [path for path in FILES if path.name != "README.md"], ids=str)
def test_every_file_is_on_a_page(path: Path) -> None:
    """Each file, or the folder of an overlay, is named by a README of its folder or of deploy/."""
    pages = [DEPLOY / "README.md", *(DEPLOY / part / "README.md" for part in path.parents)]
    text = "\n".join(page.read_text() for page in pages if page.exists())
    if path.parts[0] == "monitoring":
        text += (ROOT / "docs" / "monitoring.md").read_text()
    names = [path.name]
    if path.parts[0] == "kubernetes" and len(path.parts) == 3:
        names.append(path.parts[1])
    if path.parts[:3] == ("monitoring", "grafana", "provisioning"):
        names.append("provisioning")
    assert any(f"{name}`" in text for name in names), f"deploy/{path} is on no page"


def test_what_is_no_file_is_not_found() -> None:
    """A name that nobody uses has no test: the search finds names, not everything."""
    assert looked_at_by(Path("redis/no-such-file.conf")) == []
