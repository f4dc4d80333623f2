"""The files of docs/testing.md are a project whose tests pass."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import blocks

PAGE = "docs/testing.md"
WITH_RAY = "test_training.py"


def write(folder: Path) -> dict[str, str]:
    """Writes the page's files; their names and contents."""
    marked = [b for b in blocks(PAGE, "python") if b.mark.startswith("file ")]
    files = {block.mark.removeprefix("file "): block.text for block in marked}
    assert len(files) == len(blocks(PAGE, "python"))
    for name, text in files.items():
        (folder / name).write_text(text)
    # A project of its own: nothing of what surrounds the folder applies.
    (folder / "pytest.ini").write_text("[pytest]\n")
    return files


def passed(folder: Path, *arguments: str) -> int:
    """How many tests of the project passed; fails if any did not, or was skipped."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=250, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    summary = re.search(r"=+ (\d+) passed in ", done.stdout)
    assert summary, done.stdout
    return int(summary[1])


def test_the_tests_of_the_page_pass(tmp_path: Path) -> None:
    """Those without Ray pass, all of them."""
    files = write(tmp_path)
    tests = sum(text.count("\ndef test_") for name, text in files.items() if name != WITH_RAY)
    assert passed(tmp_path, f"--ignore={WITH_RAY}") == tests


@pytest.mark.ray
@pytest.mark.timeout(300)
def test_the_training_of_the_page_passes(tmp_path: Path) -> None:
    """Those with Ray pass."""
    files = write(tmp_path)
    assert passed(tmp_path, WITH_RAY) == files[WITH_RAY].count("\ndef test_")
