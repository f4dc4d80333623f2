"""`python -m redis_state_sync.demo`."""

from __future__ import annotations

from redis_state_sync.demo.extras import require

# multiprocessing imports this file again in each reader process, under another name.
if __name__ == "__main__":
    require("cli", "demo")

    from redis_state_sync.demo.cli import app

    app(prog_name="python -m redis_state_sync.demo")
