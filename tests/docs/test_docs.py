"""README's examples print what they promise; results and decisions are written down."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def code_blocks(page: str, language: str) -> list[str]:
    text = (ROOT / page).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.M | re.S)


def run(code: str, tmp_path: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "RAY_DEDUP_LOGS": "0"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.ray
@pytest.mark.timeout(300)
def test_readme_rllib_example(tmp_path: Path) -> None:
    """The README's ten lines train, and print the version that was published last."""
    (code,) = (c for c in code_blocks("README.md", "python") if "with_redis_state" in c)
    # Only what Ray needs on a small machine is added.
    small = "include_dashboard=False, num_cpus=4, object_store_memory=200_000_000"
    start = f"import ray; ray.init({small})\n"
    output = run(start + code, tmp_path)
    assert re.search(r"^\d{13}-\d+ [\d.e-]+$", output, re.M), output


def test_readme_has_no_other_code() -> None:
    """The README's Python is these two examples, which is why test_python_blocks leaves it out."""
    assert len(code_blocks("README.md", "python")) == 2


def test_readme_core_example(tmp_path: Path) -> None:
    """The README's lines without RLlib run, without Ray and torch, and print what was published."""
    (code,) = (c for c in code_blocks("README.md", "python") if "StatePublisher" in c)
    check = "\nimport sys; assert not {'ray', 'torch'} & sys.modules.keys()"
    assert re.search(r"^\d{13}-1 \{'w': array", run(code + check, tmp_path))


def test_result_keys_are_documented() -> None:
    """Every key of the results is in docs/metrics.md, and the page names no other."""
    staleness = pytest.importorskip("redis_state_sync.rllib.staleness")
    source = (ROOT / "src/redis_state_sync/rllib/metrics.py").read_text()
    exported = set(re.findall(r'"(\w+)": ', source)) | set(
        re.findall(r'_(?:mean|count|last)\("(\w+)"', source)
    )
    exported |= staleness.summary([staleness.UpdateLag.from_flat([1.0] * 12)]).keys()
    text = (ROOT / "docs/metrics.md").read_text()
    rows = re.findall(r"^\| (`.*?`) \|", text, re.M)
    documented = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert documented == exported


def test_adrs_are_numbered() -> None:
    """Decision records are numbered without gaps and say context, decision and consequences."""
    records = sorted((ROOT / "docs/adr").glob("*.md"))
    assert [int(r.name[:4]) for r in records] == list(range(1, len(records) + 1))
    for record in records:
        for part in ("**Context.**", "**Decision.**", "**Consequences.**"):
            assert part in record.read_text(), record.name
