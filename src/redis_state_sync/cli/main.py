"""Where the command starts: checks what must be said before anything is imported or parsed."""

from __future__ import annotations

import io
import sys
from importlib.util import find_spec

from redis_state_sync.endpoint import REMEDY


def run() -> None:
    """The entry point `redis-state-sync`."""
    if any(find_spec(module) is None for module in ("typer", "rich")):
        _end("needs packages that are not installed: pip install 'redis-state-sync[cli]'")
    if any(argument.partition("=")[0] == "--password" for argument in sys.argv[1:]):
        # Neither taken nor shown: it is in the shell's history by now.
        _end(f"a password on the command line can be read by every process of this host: {REMEDY}")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that lacks a character is no reason to show nothing.
            stream.reconfigure(errors="replace")
    from redis_state_sync.cli.app import app

    app(prog_name="redis-state-sync")


def _end(text: str) -> None:
    print(f"redis-state-sync: {text}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    run()
