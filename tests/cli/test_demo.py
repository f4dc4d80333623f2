"""`redis-state-sync demo`: the demo, by the name that is installed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "redis_state_sync.cli.main", "demo"]


@pytest.fixture
def own_tmp() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *words],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )


def test_options_and_status_are_the_demos(tmp_path: Path, own_tmp: Path) -> None:
    """Its options are passed on as they are, and its exit status comes back."""
    words = ("--core", "--no-chaos", "--seconds", "5", "--target", "501", "--out", str(tmp_path))
    done = run(*words, TMPDIR=str(own_tmp))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "FAILED: the mean return reached" in done.stdout
    assert list(tmp_path.glob("*.png"))
    assert run("--nonsense").returncode == 2


def test_its_help() -> None:
    """`demo --help` shows the demo's own options; the list of commands has it."""
    done = run("--help", COLUMNS="100")
    assert (done.returncode, "--outage" in done.stdout) == (0, True)
    done = subprocess.run([*COMMAND[:-1], "--help"], capture_output=True, text=True, check=True)
    assert "demo" in done.stdout


def test_ended_by_hand(tmp_path: Path, own_tmp: Path) -> None:
    """Ctrl-C ends it with the demo's own words and status, and its server with it."""
    running = subprocess.Popen(
        [*COMMAND, "--core", "--seconds", "60", "--target", "501", "--out", str(tmp_path)],
        env={**os.environ, "TMPDIR": str(own_tmp)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert running.stdout is not None
    lines = [running.stdout.readline() for _ in range(4)]
    os.killpg(running.pid, signal.SIGINT)  # As a terminal does.
    printed = "".join(lines) + running.communicate(timeout=30)[0]
    assert running.returncode == 130, printed
    assert "interrupted; server and readers are stopped" in printed
    assert not list(own_tmp.glob("redis-state-sync-*/*"))


@pytest.mark.parametrize(
    ("module", "words", "extra"), [("matplotlib", ("--core",), "demo"), ("ray", (), "rllib")]
)
def test_missing_packages_are_named(
    tmp_path: Path, module: str, words: tuple[str, ...], extra: str
) -> None:
    """Without the packages that it needs it says which extra to install, and ends with status 2."""
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as u\n"
        "found = u.find_spec\n"
        f"u.find_spec = lambda n, *a: None if n == {module!r} else found(n, *a)\n"
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = run(*words, PYTHONPATH=path)
    assert done.returncode == 2
    assert f"pip install 'redis-state-sync[{extra}]'" in done.stderr
    assert "Traceback" not in done.stderr
