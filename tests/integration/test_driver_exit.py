"""A driver that ends without a word."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_a_driver_that_stops_nothing() -> None:
    """A driver that exits without stop() ends promptly and well, and leaves no server behind."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.integration.driver"],
        cwd=ROOT,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # Ray has much to say on stderr; of us there is nothing.
    assert "redis_state_sync" not in done.stderr
    (line,) = [text for text in done.stdout.splitlines() if text.startswith("SERVER")]
    _, pid, *files = line.split()
    deadline = time.monotonic() + 30
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{pid}").exists()
    assert not [file for file in files if Path(file).exists()]
