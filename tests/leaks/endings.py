"""Ends without closing anything: ``endings.py KIND URL``, in as many ways as there are kinds."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import numpy as np

from redis_state_sync import StatePublisher, StateSubscriber, open_store
from redis_state_sync.embedded import EmbeddedServer

WAIT = 30.0
held: list[Any] = []
"""What is still there when the interpreter exits."""


def ready(*words: object) -> None:
    """Says so, and waits until it is told to go on."""
    print(*words, flush=True)
    sys.stdin.readline()


def small(url: str) -> None:
    """Publishes, and ends at once."""
    held.append(StatePublisher(open_store(url), "n", connect_timeout_s=WAIT))
    held[0].publish({"number": 1})


def large(url: str) -> None:
    """Ends in the middle of a publish of several pieces."""
    held.append(StatePublisher(open_store(url), "n", connect_timeout_s=WAIT))
    held[0].publish({"number": 1}).wait(WAIT)
    held[0].publish({"rl_module/p": np.arange(8 << 20), "number": 2})


def later(url: str) -> None:
    """Publishes when something has happened to the server."""
    held.append(StatePublisher(open_store(url), "n", connect_timeout_s=WAIT))
    held[0].publish({"number": 1}).wait(WAIT)
    ready("ready")
    held[0].publish({"number": 2})


def reading(url: str) -> None:
    """A reader ends when something has happened to the server."""
    held.append(StateSubscriber(open_store(url), "n"))
    held[0].refresh(lambda s: None)
    ready("ready")
    held[0].refresh(lambda s: None)


def callback(url: str) -> None:
    """A reader's own code raises, and nobody catches it."""
    held.append(StatePublisher(open_store(url), "n", connect_timeout_s=WAIT))
    held[0].publish({"number": 1}).wait(WAIT)
    held.append(StateSubscriber(open_store(url), "n", poll_timeout_s=WAIT))
    held[1].refresh(lambda s: s["number"] / 0)


def own_server(url: str) -> None:
    """A server of its own, a learner and a reader."""
    server = EmbeddedServer()
    held.extend((server, StatePublisher(open_store(server.url), "n", connect_timeout_s=WAIT)))
    held[1].publish({"number": 1}).wait(WAIT)
    held.append(StateSubscriber(open_store(server.url), "n"))
    held[2].refresh(lambda s: None)
    ready(os.getpid(), server.pid)
    held[1].publish({"number": 2})


def wrong_password(url: str) -> None:
    """A server of its own, which does not let it in."""
    held.append(EmbeddedServer(password="right"))
    StatePublisher(open_store(held[0].url), "n", connect_timeout_s=WAIT)


def main(kind: str, url: str) -> None:
    """Runs one of them."""
    # Who was started by a shell in the background has it ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    {
        each.__name__: each
        for each in (small, large, later, reading, callback, own_server, wrong_password)
    }[kind](url)


if __name__ == "__main__":
    main(*sys.argv[1:])
