"""The demo, as a user starts it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

DEMO = [sys.executable, "-m", "redis_state_sync.demo"]


@pytest.fixture
def own_tmp() -> Iterator[Path]:
    """Where the demo leaves temporary files. pytest's own path is too long for a Unix socket."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


def environment(own_tmp: Path, **more: str) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(own_tmp), **more}


def leftovers(own_tmp: Path) -> list[Path]:
    """What a server that was not stopped, or not cleaned up after, would leave."""
    return list(own_tmp.glob("redis-state-sync-*/*"))


def test_core_runs_without_ray_and_torch(tmp_path: Path, own_tmp: Path) -> None:
    """The demo without Ray learns through an outage, and imports neither ray nor torch."""
    for module in ("ray", "torch"):
        (tmp_path / f"{module}.py").write_text("raise RuntimeError('imported')")
    done = subprocess.run(
        [*DEMO, "--core", "--out", str(tmp_path / "plot.png"), "--seconds", "30"],
        env=environment(own_tmp, PYTHONPATH=str(tmp_path)),
        capture_output=True,
        text=True,
        timeout=55,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "killed the server (SIGKILL)" in done.stdout
    assert "every reader is up to date again" in done.stdout
    assert "OK: reached a mean return of" in done.stdout
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert not leftovers(own_tmp)


def test_unreached_target_is_a_failure(tmp_path: Path, own_tmp: Path) -> None:
    """A run that does not reach its target ends with status 1 and says why."""
    done = subprocess.run(
        [*DEMO, "--core", "--no-chaos", "--seconds", "5", "--target", "501"],
        cwd=tmp_path,
        env=environment(own_tmp),
        capture_output=True,
        text=True,
        timeout=40,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "FAILED: the mean return reached" in done.stdout


def test_ctrl_c_stops_server_and_readers(tmp_path: Path, own_tmp: Path) -> None:
    """An interrupted demo ends with status 130 and leaves no server behind."""
    demo = subprocess.Popen(
        [*DEMO, "--core", "--seconds", "60", "--target", "501"],
        cwd=tmp_path,
        env=environment(own_tmp),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert demo.stdout is not None
    lines = [demo.stdout.readline() for _ in range(4)]
    os.killpg(demo.pid, signal.SIGINT)  # As a terminal does: the readers get it, too.
    # Ends only when every reader has ended, too: they inherited the pipe.
    printed = "".join(lines) + demo.communicate(timeout=30)[0]
    assert demo.returncode == 130, printed
    assert "interrupted; server and readers are stopped" in printed
    assert "Traceback" not in printed
    assert not leftovers(own_tmp)


def test_missing_extra_names_the_pip_line(tmp_path: Path) -> None:
    """Without an extra the demo ends with status 2 and the line that installs it."""
    code = (
        "import sys, runpy; sys.modules['matplotlib'] = None; "
        "sys.argv = ['demo']; runpy.run_module('redis_state_sync.demo', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=30
    )
    assert done.returncode == 2, done.stdout + done.stderr
    assert "pip install 'redis-state-sync[demo]'" in done.stderr


@pytest.mark.ray
@pytest.mark.timeout(200)
def test_rllib_demo_survives_the_outage(tmp_path: Path, own_tmp: Path) -> None:
    """With RLlib, EnvRunners go on sampling while the server is away, and follow it afterwards."""
    done = subprocess.run(
        [*DEMO, "--seconds", "90", "--target", "30", "--outage", "2", "--out", str(tmp_path)],
        env=environment(own_tmp),
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "through a server that was killed and came back empty" in done.stdout
    assert (tmp_path / "redis-state-sync-demo.png").exists()
