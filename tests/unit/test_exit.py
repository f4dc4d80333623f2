"""What becomes of states and calls when a script simply ends."""

from __future__ import annotations

import subprocess
import sys

import pytest

from redis_state_sync import StateSubscriber, open_store
from redis_state_sync.testing import EmbeddedServer

START = """
from redis_state_sync import StatePublisher, StateSubscriber, open_store
publisher = StatePublisher(open_store({url!r}), "n", heartbeat_s=3600)
"""


def run(server: EmbeddedServer, script: str) -> str:
    """Runs a script to its end; returns what it printed and warned of."""
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", START.format(url=server.url) + script],
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    )
    return done.stdout + done.stderr


def test_what_was_published_last_is_stored(redis_state_server: EmbeddedServer) -> None:
    """A script that ends right after `publish` has stored its state, without `close`."""
    output = run(redis_state_server, "publisher.publish({'w': bytes(20_000_000)})")
    assert output == ""
    snapshot = StateSubscriber(open_store(redis_state_server.url), "n").fetch(timeout=20)
    assert snapshot is not None
    assert len(snapshot["w"]) == 20_000_000


def test_an_exit_without_a_store_does_not_wait(redis_state_server: EmbeddedServer) -> None:
    """A script that ends while its server is gone ends all the same."""
    end = "import os, signal; os.kill({pid}, signal.SIGKILL); publisher.publish({{'w': 1}})"
    assert "failed" in run(redis_state_server, end.format(pid=redis_state_server.pid))


@pytest.mark.parametrize("call", ["refresh(print)", "poll(timeout=20)"])
def test_a_reader_that_is_asked_during_the_shut_down(
    redis_state_server: EmbeddedServer, call: str
) -> None:
    """A destructor that still asks gets no answer, and does not hang."""
    late = f"""
class Late:
    def __init__(self):
        self.subscriber = StateSubscriber(open_store({redis_state_server.url!r}), "n")

    def __del__(self):
        print("asking", flush=True)
        self.subscriber.{call}

late = Late()
"""
    output = run(redis_state_server, late)
    assert "asking" in output
    assert "interpreter shuts down" in output
