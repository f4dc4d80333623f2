"""The soak run: what it prints, writes and returns."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from tests.chaos import recovery
from tests.chaos.soak import main

pytestmark = pytest.mark.timeout(240)


def soak(folder: Path, *options: str) -> int:
    return main(["--seed", "5", "--only", "clients_killed", "--folder", str(folder), *options])


def test_a_run_without_violations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It ends with 0, says what it did, and writes the same into its folder."""
    assert soak(tmp_path / "run", "--steps", "2") == 0
    printed = capsys.readouterr().out
    assert "seed 5" in printed
    assert "violations: 0" in printed
    assert "2 clients_killed" in printed
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert len(report["steps"]) == report["counts"]["faults injected"] == 2
    assert report["counts"]["versions stored"] > 0
    assert report["counts"]["snapshots checked"] > 0
    assert (tmp_path / "run" / "learner-1.jsonl").exists()


def test_a_run_with_violations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends with 1, and says what to type to have the same faults again."""
    monkeypatch.setattr(recovery, "RECOVERED_S", -100.0)
    assert soak(tmp_path / "run", "--steps", "1", "--longest", "1") == 1
    printed = capsys.readouterr().out
    assert "VIOLATION [" in printed
    (again,) = (line for line in printed.splitlines() if line.startswith("again: "))
    words = shlex.split(again.removeprefix("again: "))
    assert words[:5] == ["python", "-m", "tests.chaos.soak", "--seed", "5"]
    assert "--steps" in words
    assert words[words.index("--only") + 1] == "clients_killed"
