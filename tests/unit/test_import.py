"""What importing the package does."""

from __future__ import annotations

import subprocess
import sys

import redis_state_sync


def test_imports_neither_ray_nor_torch() -> None:
    """`import redis_state_sync` is quick: ray, torch, gymnasium and pytest stay unloaded."""
    code = (
        "import sys, redis_state_sync\n"
        "print(*sorted({'ray', 'torch', 'gymnasium', 'pytest', 'fakeredis'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env={"PYTHONPATH": ":".join(p for p in sys.path if p)},
    )  # fmt: skip
    assert done.stdout.strip() == ""


def test_all_is_sorted_and_there() -> None:
    """Every public name exists, and the list is sorted."""
    names = redis_state_sync.__all__
    assert names == sorted(names)
    for name in names:
        assert getattr(redis_state_sync, name) is not None
