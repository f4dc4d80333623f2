"""A process that forks keeps what it has, and its children get their own."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.leaks import programs

# Seconds on an idle machine; this one is shared.
pytestmark = pytest.mark.timeout(300)

WAIT = 30.0


@pytest.mark.parametrize("end", ["os_exit", "sys_exit", "returns"])
@pytest.mark.parametrize("kind", ["forked", "in_an_upload"])
def test_fork(kind: str, end: str) -> None:
    """Parent and child poll at once, each gets its own replies; however the child ends, learner,
    reader, server and connections of the parent live on: C90.
    """
    # Not strict: Python warns of a Popen whose process is the parent's.
    done = programs.run("forks", kind, end, strict=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing(method: str) -> None:
    """Store and reader work in a process that multiprocessing started in any way: C90, C91."""
    done = programs.run("forks", "started", method)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_child_that_outlives_the_driver() -> None:
    """A killed driver's server goes, although a forked child of the driver lives on: C90."""
    process = programs.start("forks", "orphan", "-")
    assert process.stdout is not None
    server, folder, child = process.stdout.readline().split()
    try:
        process.kill()
        process.wait(WAIT)
        deadline = time.monotonic() + WAIT
        while Path(f"/proc/{server}").exists() or Path(folder).exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        os.kill(int(child), signal.SIGKILL)
        process.communicate(timeout=WAIT)
