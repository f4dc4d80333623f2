"""Makes what a program may have, and lets go of it: ``lifetimes.py KIND CYCLES``."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from threading import enumerate as enumerate_threads

import numpy as np

from redis_state_sync import (
    Snapshot,
    StalePublisherError,
    StatePublisher,
    StateSubscriber,
    StoreError,
    open_store,
)
from redis_state_sync.embedded import EmbeddedServer
from tests.leaks import cycles
from tests.leaks.census import Server
from tests.leaks.cycles import WAIT, Cycle


@contextmanager
def _server(make: Callable[[str], Cycle]) -> Iterator[Cycle]:
    with EmbeddedServer() as server:
        observer = Server(server)
        yield make(server.url)
        # Not one connection is left, of all that there were.
        observer.wait_for_connections(1)
        observer.close()


def _published(publisher: StatePublisher, subscriber: StateSubscriber) -> None:
    version = publisher.publish({"c": np.zeros(100)}).wait(WAIT)
    snapshot = subscriber.refresh(lambda s: s["c"])
    assert snapshot is not None
    assert snapshot.version == version


def _make(url: str) -> tuple[StatePublisher, StateSubscriber]:
    publisher = StatePublisher(open_store(url), "n", connect_timeout_s=WAIT)
    return publisher, StateSubscriber(open_store(url), "n", poll_timeout_s=WAIT)


@contextmanager
def closed() -> Iterator[Cycle]:
    """A learner and a reader, closed."""

    def make(url: str) -> Cycle:
        def cycle() -> None:
            publisher, subscriber = _make(url)
            _published(publisher, subscriber)
            publisher.close()
            subscriber.close()

        return cycle

    with _server(make) as cycle:
        yield cycle


@contextmanager
def dropped() -> Iterator[Cycle]:
    """A learner and a reader, dropped without a word."""
    with _server(lambda url: lambda: _published(*_make(url))) as cycle:
        yield cycle


@contextmanager
def prefetched() -> Iterator[Cycle]:
    """A reader that prefetches and refreshes in flight, block after block."""

    with EmbeddedServer() as server:
        publisher, subscriber = _make(server.url)
        numbers = itertools.count()

        def cycle() -> None:
            version = publisher.publish({"rl_module/p": np.full(2000, next(numbers))}).wait(WAIT)
            deadline = time.monotonic() + WAIT
            with subscriber.prefetching():
                while subscriber.held != version:
                    assert time.monotonic() < deadline
                    subscriber.refresh_in_flight(lambda s: s["rl_module/p"])
                    time.sleep(0.001)
            for _ in range(10):
                with subscriber.prefetching():
                    subscriber.refresh_in_flight(lambda s: None)
            subscriber.refresh(lambda s: None)

        with closing(publisher), closing(subscriber):
            yield cycle


@contextmanager
def dropped_while_prefetching() -> Iterator[Cycle]:
    """Readers that nobody holds any more, while their threads are at it."""
    with EmbeddedServer() as server:
        observer = Server(server)
        publisher, _ = _make(server.url)
        del _
        publisher.publish({"rl_module/p": np.zeros(100_000)}).wait(WAIT)

        def cycle() -> None:
            subscriber = StateSubscriber(open_store(server.url), "n", poll_timeout_s=WAIT)
            subscriber.prefetching().__enter__()

        with closing(publisher):
            yield cycle
            deadline = time.monotonic() + WAIT
            while any(t.name.startswith("redis-state-sync-prefetch") for t in enumerate_threads()):
                assert time.monotonic() < deadline, "a thread goes on"
                time.sleep(0.05)
            observer.wait_for_connections(2)
            observer.close()


@contextmanager
def taken_over() -> Iterator[Cycle]:
    """A learner that is refused, and goes on trying for a while; nobody ever closes it."""

    def make(url: str) -> Cycle:
        def cycle() -> None:
            older, _ = _make(url)
            newer, _ = _make(url)
            for _ in range(5):
                try:
                    older.publish({"c": np.zeros(100)}).wait(WAIT)
                except StalePublisherError:
                    continue
                raise AssertionError("not refused")
            newer.close()

        return cycle

    with _server(make) as cycle:
        yield cycle


@contextmanager
def shut_out() -> Iterator[Cycle]:
    """A learner whose password is wrong: its constructor raises."""
    with EmbeddedServer(password="right") as server:

        def cycle() -> None:
            try:
                StatePublisher(open_store(server.url), "n", connect_timeout_s=WAIT)
            except StoreError:
                return
            raise AssertionError("let in")

        yield cycle


@contextmanager
def callback_raises() -> Iterator[Cycle]:
    """A reader whose own code raises; the state is large, so that one that is kept is seen."""

    with EmbeddedServer() as server:
        publisher, subscriber = _make(server.url)
        numbers = itertools.count()

        def apply(snapshot: Snapshot) -> None:
            raise ZeroDivisionError(f"{snapshot['c'].sum()}")

        def cycle() -> None:
            publisher.publish({"c": np.full(200_000, float(next(numbers)))}).wait(WAIT)
            try:
                subscriber.refresh(apply)
            except ZeroDivisionError:
                return
            raise AssertionError("nothing was applied")

        with closing(publisher), closing(subscriber):
            yield cycle


@contextmanager
def servers_stopped() -> Iterator[Cycle]:
    """A server, stopped."""
    yield lambda: EmbeddedServer().stop()


@contextmanager
def servers_dropped() -> Iterator[Cycle]:
    """A server, dropped."""
    yield lambda: EmbeddedServer().url


@contextmanager
def servers_that_fail() -> Iterator[Cycle]:
    """A server that does not start."""

    def cycle() -> None:
        try:
            EmbeddedServer(config=("no-such-directive yes",))
        except StoreError:
            return
        raise AssertionError("it started")

    yield cycle


if __name__ == "__main__":
    cycles.main(
        closed,
        dropped,
        prefetched,
        dropped_while_prefetching,
        taken_over,
        shut_out,
        callback_raises,
        servers_stopped,
        servers_dropped,
        servers_that_fail,
    )
