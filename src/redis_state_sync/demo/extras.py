"""Says which extra is missing, before an import error does."""

from __future__ import annotations

import sys
from importlib.util import find_spec

_MODULES = {
    "cli": ("typer", "rich"),
    "demo": ("rich", "matplotlib"),
    "rllib": ("ray", "torch", "gymnasium"),
}


def missing(*extras: str) -> list[str]:
    """The extras of which some module can not be imported."""
    return [
        extra for extra in extras if any(find_spec(module) is None for module in _MODULES[extra])
    ]


def require(*extras: str) -> None:
    """Ends the process with status 2 and the line to type, if an extra is not installed."""
    absent = missing(*extras)
    if absent:
        print(
            "The demo needs packages that are not installed. Install them by\n\n"
            f"    pip install 'redis-state-sync[{','.join(absent)}]'\n",
            file=sys.stderr,
        )
        sys.exit(2)
