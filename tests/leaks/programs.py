"""Runs a module of this folder in a process of its own, as strict as Python can be."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Every file or socket that Python has to close in our stead is an error, on stderr.
STRICT = ("-X", "dev", "-W", "error::ResourceWarning", "-W", "ignore::DeprecationWarning")


def command(module: str, *arguments: object, strict: bool = True) -> list[str]:
    """The command line of a module of this folder."""
    options = STRICT if strict else ()
    return [sys.executable, *options, "-m", f"tests.leaks.{module}", *map(str, arguments)]


def start(module: str, *arguments: object, **environment: str) -> subprocess.Popen[str]:
    """Starts it, with pipes for all three streams."""
    return subprocess.Popen(
        command(module, *arguments),
        cwd=ROOT,
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(
    module: str, *arguments: object, timeout: float = 150.0, strict: bool = True, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs it to its end, within so many seconds."""
    return subprocess.run(
        command(module, *arguments, strict=strict),
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
