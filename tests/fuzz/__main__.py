"""Looks for bytes that break a promise: ``python -m tests.fuzz --seconds 600``, or `make fuzz`.

Coverage-guided, by atheris. What it found to be new is kept in ``out/fuzz/<target>`` and is where
the next run begins. A finding is written to ``out/fuzz/findings``; repeat it by
``python -m tests.fuzz.one <target> <file>``.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

from tests.fuzz.reach import lines_missed
from tests.fuzz.targets import TARGETS

OUT = Path("out/fuzz")
# For one input. libFuzzer's own default is 20 minutes.
TIMEOUT_S = 10
MAX_LEN = 16 << 10


def fuzz(name: str, seconds: int) -> tuple[int, int, list[Path]]:
    """Fuzzes one target.

    Returns:
        Executions, edges covered, and the files of findings.
    """
    corpus, findings = OUT / name, OUT / "findings"
    corpus.mkdir(parents=True, exist_ok=True)
    findings.mkdir(exist_ok=True)
    for number, seed in enumerate(TARGETS[name].seeds()):
        (corpus / f"seed-{number:03}").write_bytes(seed)
    before = set(findings.iterdir())
    done = subprocess.run(
        [
            sys.executable, "-m", "tests.fuzz.one", name, f"-max_total_time={seconds}",
            f"-timeout={TIMEOUT_S}", f"-max_len={MAX_LEN}", "-rss_limit_mb=0", "-len_control=0",
            f"-artifact_prefix={findings}/{name}-", "-print_final_stats=1", str(corpus),
        ],
        stderr=subprocess.STDOUT, stdout=subprocess.PIPE, text=True, errors="replace", check=False,
    )  # fmt: skip
    found = sorted(set(findings.iterdir()) - before)
    if done.returncode or found:
        print(done.stdout[-4000:])
    executed = re.search(r"stat::number_of_executed_units: (\d+)", done.stdout)
    covered = re.findall(r"cov: (\d+)", done.stdout)
    if executed is None or not covered:
        raise SystemExit(f"{name}: fuzzing did not begin:\n{done.stdout[-4000:]}")
    return int(executed[1]), int(covered[-1]), found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=600, help="for all targets together")
    parser.add_argument("--missed", action="store_true", help="list the lines not reached")
    parser.add_argument("targets", nargs="*", choices=[*TARGETS, []], help="default: all")
    options = parser.parse_args()
    if importlib.util.find_spec("atheris") is None:
        print("atheris is missing: pip install -e '.[fuzz]' (Linux on x86-64 only)")
        return 2
    names = options.targets or list(TARGETS)
    shares = sum(TARGETS[name].share for name in names)
    failed = False
    print(f"{'target':10} {'seconds':>7} {'executions':>10} {'edges':>6} {'lines':>6}  findings")
    for name in names:
        seconds = max(1, round(options.seconds * TARGETS[name].share / shares))
        executed, edges, found = fuzz(name, seconds)
        there, missed = lines_missed(TARGETS[name], OUT / name)
        print(
            f"{name:10} {seconds:7} {executed:10} {edges:6} {1 - len(missed) / there:6.1%}  "
            f"{', '.join(map(str, found)) or 'none'}",
            flush=True,
        )
        if options.missed:
            print("           missed:", " ".join(missed))
        failed |= bool(found)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
