"""What docs/league.md says is so."""

from __future__ import annotations

import re
from pathlib import Path

from tests.docs.test_docs import ROOT, code_blocks, run

PAGE = "docs/league.md"


def test_the_example_runs(tmp_path: Path) -> None:
    """The lines of docs/league.md run, without Ray, and what they assert holds."""
    (code,) = code_blocks(PAGE, "python")
    run(code + "\nimport sys; assert 'ray' not in sys.modules", tmp_path)


def test_what_it_names_is_there() -> None:
    """Files, functions and options that the pages name are those of the example."""
    folder = ROOT / "examples" / "league"
    readme = (folder / "README.md").read_text()
    assert sorted(re.findall(r"^\| `(\w+\.py)`", readme, re.M)) == sorted(
        file.name for file in folder.glob("*.py")
    )
    train = (folder / "train.py").read_text()
    for option in re.findall(r"train\.py (.*)", readme):
        for name in re.findall(r"--[a-z-]+", option):
            assert f'"{name}"' in train, name
    rolling_back = code_blocks(PAGE, "text")[-1]
    assert '{"learner_group": {"learner": {"rl_module": ' in rolling_back
    assert '{"learner_group": {"learner": {"rl_module": ' in train


def test_rights_are_those_of_the_runner() -> None:
    """The rights that the page names for reading pins are in users.acl, for the user `runner`."""
    users = (ROOT / "deploy" / "redis" / "users.acl").read_text()
    (runner,) = re.findall(r"^user runner .*?\n\n", users, re.M | re.S)
    (named,) = re.findall(r"`(\(%R~rss[^`]*)`", (ROOT / PAGE).read_text())
    assert f"    {named}\n" in runner
