"""`redis-state-sync demo`: training that goes on while its server is killed."""

from __future__ import annotations

import os
import sys

import typer

# The demo has options of its own, `--help` among them.
SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def demo(context: typer.Context) -> None:
    """Trains while the server is killed half-way: see demo --help. With --core: without Ray.

    Takes the options of python -m redis_state_sync.demo, whose place it is; needs the extra demo.
    """
    sys.stdout.flush()
    # This process becomes the demo: so Ctrl-C, other signals and the exit status are the demo's.
    words = [sys.executable, "-m", "redis_state_sync.demo", *context.args]
    os.execv(sys.executable, words)  # noqa: S606 -- a fixed program, and no shell
