"""`python -m benchmarks`."""

from __future__ import annotations

if __name__ == "__main__":
    from benchmarks.cli import app

    app(prog_name="python -m benchmarks")
