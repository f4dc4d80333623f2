"""Uses the node's cache in every way, many times: ``node_cache.py KIND CYCLES``."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import numpy as np

from redis_state_sync import Snapshot, StatePublisher, StateSubscriber, open_store
from redis_state_sync.embedded import EmbeddedServer
from tests.leaks import cycles
from tests.leaks.cycles import WAIT, Cycle

SIZE = 300 << 10
"""Bytes of a component: enough to be shared."""


class Module:
    """Points at what was applied last, as a module's parameters do."""

    def __init__(self) -> None:
        self.weights: dict[str, Any] = {}

    def apply(self, snapshot: Snapshot) -> None:
        """Maps what changed."""
        for name in snapshot.changed:
            self.weights[name] = snapshot.view(name)["w"]
            if snapshot.is_private(name):
                self.weights[name][:8] = 1  # A page of its own, which goes with the mapping.


def _state(number: int) -> dict[str, Any]:
    changed: dict[str, Any] = {"rl_module/p": {"w": np.full(SIZE, number % 251, np.uint8)}}
    if number % 3 == 0:
        changed["rl_module/q"] = {"w": np.full(SIZE + 4096, number % 241, np.uint8)}
    if number == 0:
        changed["rl_module/frozen"] = {"w": np.zeros(SIZE, np.uint8)}
    return {**changed, "counters": {"w": np.array([number])}}


def _publisher(url: str) -> StatePublisher:
    return StatePublisher(open_store(url), "n", connect_timeout_s=WAIT)


def _subscriber(url: str) -> StateSubscriber:
    return StateSubscriber(open_store(url), "n", poll_timeout_s=WAIT)


def _published(publisher: StatePublisher, number: int) -> None:
    publisher.publish(_state(number)).wait(WAIT)


def _applied(subscriber: StateSubscriber, module: Module, number: int) -> None:
    assert subscriber.refresh(module.apply) is not None
    assert module.weights["counters"][0] == number
    assert module.weights["rl_module/p"][-1] == number % 251


@contextmanager
def published() -> Iterator[Cycle]:
    """A learner, and two readers that map what it publishes; one skips every other version."""
    with EmbeddedServer() as server, closing(_publisher(server.url)) as publisher:
        readers = [_subscriber(server.url) for _ in range(2)]
        modules = [Module(), Module()]
        numbers = itertools.count()

        def cycle() -> None:
            number = next(numbers)
            _published(publisher, number)
            for place in range(1 + number % 2):
                _applied(readers[place], modules[place], number)

        yield cycle
        for reader in readers:
            reader.close()


@contextmanager
def come_and_go() -> Iterator[Cycle]:
    """Learners and readers that are closed, and their readers dropped; each finds the others'."""
    with EmbeddedServer() as server:

        def cycle() -> None:
            with closing(_publisher(server.url)) as publisher:
                _published(publisher, 0)
                first, second = (_subscriber(server.url) for _ in range(2))
                _applied(first, Module(), 0)
                _published(publisher, 1)
                module = Module()
                _applied(second, module, 1)
                first.close()
            _applied(first, module, 1)
            first.close()
            second.close()

        yield cycle


@contextmanager
def forked() -> Iterator[Cycle]:
    """A reader whose children read for themselves, while it holds what it has mapped."""
    with EmbeddedServer() as server, closing(_publisher(server.url)) as publisher:
        subscriber, module, numbers = _subscriber(server.url), Module(), itertools.count()

        def cycle() -> None:
            number = next(numbers)
            _published(publisher, number)
            _applied(subscriber, module, number)
            child = os.fork()
            if not child:
                status = 1
                try:
                    _applied(subscriber, module, number)
                    status = 0
                finally:
                    os._exit(status)
            assert os.waitpid(child, 0)[1] == 0
            assert module.weights["rl_module/p"][-1] == number % 251

        with closing(subscriber):
            yield cycle


if __name__ == "__main__":
    cycles.main(published, come_and_go, forked)
