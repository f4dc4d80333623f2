"""Code in docstrings (after `::`) is code, and the names of classes in it exist."""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import re
import textwrap
from collections.abc import Iterator

from tests.docs.commands import commands_in, problem_of
from tests.docs.pages import ROOT, fail_if

# Behind text: one that stands alone shows bytes or keys.
_BLOCK = re.compile(r"\S::\n\n((?: {4,}.*\n|\n)+)")
_SHELL = re.compile(r"(pip|make|python|redis-state-sync) ")


def examples() -> Iterator[tuple[str, str, ast.Module]]:
    """Where, the code, and the module that it stands in."""
    for path in sorted((ROOT / "src").rglob("*.py")):
        module = ast.parse(path.read_text())
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
        for node in ast.walk(module):
            text = ast.get_docstring(node) if isinstance(node, kinds) else None
            for block in _BLOCK.findall(f"{text}\n") if text else ():
                where = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}"
                yield where, textwrap.dedent(block), module


def names_of(module: ast.Module) -> set[str]:
    """What a module defines and imports, at its top."""
    found = set()
    for node in module.body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            found.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found |= {(name.asname or name.name) for name in node.names}
    return found


@functools.cache
def classes() -> frozenset[str]:
    """All classes of this package and of Python."""
    modules = (ast.parse(path.read_text()) for path in (ROOT / "src").rglob("*.py"))
    ours = {n.name for module in modules for n in module.body if isinstance(n, ast.ClassDef)}
    return frozenset(ours | vars(builtins).keys())


def problem_in(code: str, module: ast.Module) -> str | None:
    """What is wrong with an example, or None."""
    if _SHELL.match(code):
        return next((p for _, words in commands_in(code) if (p := problem_of(words))), None)
    try:
        tree = ast.parse(code)
    except SyntaxError as error:
        return f"no Python: {error}"
    calls = [n.func for n in ast.walk(tree) if isinstance(n, ast.Call)]
    called = {f.id for f in calls if isinstance(f, ast.Name) and f.id[0].isupper()}
    unknown = called - classes() - names_of(module)
    return f"unknown: {', '.join(sorted(unknown))}" if unknown else None


def test_examples_in_docstrings() -> None:
    """Each example of a docstring is Python or a command, of names that there are."""
    found = list(examples())
    wrong = [f"{where}: {p}" for where, code, module in found if (p := problem_in(code, module))]
    fail_if(wrong)
    assert len(found) > 5


def test_a_wrong_example_is_found() -> None:
    """A typing error in an example is found."""
    here = ast.parse(inspect.getsource(inspect.getmodule(test_a_wrong_example_is_found)))
    assert problem_in("StatePublisher(store, 'run')\n", here) is None
    assert problem_in("StatePublihser(store, 'run')\n", here) == "unknown: StatePublihser"
    assert "no Python" in str(problem_in("publish(\n", here))
    assert "no target" in str(problem_in("make dmeo\n", here))
