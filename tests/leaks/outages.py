"""Fails in one way many times, and prints what is held meanwhile: ``outages.py KIND CYCLES``."""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager

import numpy as np

from redis_state_sync import StatePublisher, StateSubscriber, StoreError, open_store
from redis_state_sync.embedded import EmbeddedServer
from redis_state_sync.errors import StoreTimeoutError
from redis_state_sync.memory_store import MemoryStore
from redis_state_sync.store import Store
from redis_state_sync.testing import ScriptedStore
from tests.leaks import cycles
from tests.leaks.census import Server
from tests.leaks.cycles import WAIT, Cycle
from tests.unit.peers import Handler, peer, silent, slamming


def reader(store: Store, *, poll_timeout_s: float = WAIT) -> StateSubscriber:
    """Never cools down: ten seconds pass between any two looks at its clock."""
    clock = itertools.count(step=10.0)
    return StateSubscriber(
        store,
        "n",
        poll_timeout_s=poll_timeout_s,
        first_timeout_s=poll_timeout_s,
        clock=lambda: next(clock),
    )


@contextmanager
def refused() -> Iterator[Cycle]:
    """Nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with closing(reader(open_store(f"redis://127.0.0.1:{port}"))) as subscriber:
        yield lambda: subscriber.refresh(print)


@contextmanager
def _failing(handler: Handler, poll_timeout_s: float) -> Iterator[Cycle]:
    with (
        peer(handler) as url,
        closing(reader(open_store(url), poll_timeout_s=poll_timeout_s)) as subscriber,
    ):

        def cycle() -> None:
            with closing(open_store(url)) as store:  # and one that is closed while it waits
                subscriber.refresh(print)
                try:
                    store.time_ms(timeout=poll_timeout_s)
                except StoreError:
                    pass

        yield cycle


def silence() -> AbstractContextManager[Cycle]:
    """The peer accepts and never answers."""
    return _failing(silent, 0.001)


def slammed() -> AbstractContextManager[Cycle]:
    """The peer accepts and closes."""
    return _failing(slamming, WAIT)


@contextmanager
def down() -> Iterator[Cycle]:
    """The learner publishes on, though its store times out; only every other time it waits."""
    store = ScriptedStore(MemoryStore())
    with closing(StatePublisher(store, "n", heartbeat_s=3600)) as publisher:
        store.go_down(StoreTimeoutError("no answer in time"))
        numbers = itertools.count()

        def cycle() -> None:
            number = next(numbers)
            handle = publisher.publish({"c": np.full(100, number)})
            if number % 2:
                try:
                    handle.wait(WAIT, fail_fast=True)
                except StoreError:
                    pass

        yield cycle


@contextmanager
def _real(server: EmbeddedServer, harm: Callable[[], None]) -> Iterator[Cycle]:
    with (
        closing(StatePublisher(open_store(server.url), "n", connect_timeout_s=WAIT)) as publisher,
        closing(reader(open_store(server.url))) as subscriber,
    ):
        numbers = itertools.count()

        def cycle() -> None:
            harm()
            version = publisher.publish({"c": next(numbers)}).wait(WAIT)
            deadline = time.monotonic() + WAIT
            while subscriber.held != version:
                subscriber.refresh(lambda s: s["c"])
                assert time.monotonic() < deadline

        yield cycle


@contextmanager
def cut() -> Iterator[Cycle]:
    """The server closes every connection but its own observer's."""
    with EmbeddedServer() as server:
        observer = Server(server)
        with _real(server, observer.cut_others) as cycle:
            yield cycle
        observer.close()


@contextmanager
def killed() -> Iterator[Cycle]:
    """The server is killed and comes back empty."""
    with EmbeddedServer() as server:

        def harm() -> None:
            server.kill()
            server.start()

        with _real(server, harm) as cycle:
            yield cycle


if __name__ == "__main__":
    cycles.main(refused, silence, slammed, down, cut, killed)
