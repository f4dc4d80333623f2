"""A learner, a reader and their server in a process that forks: ``forks.py KIND``."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Any

import numpy as np

from redis_state_sync import SettingsError, StatePublisher, StateSubscriber, open_store
from redis_state_sync.embedded import EmbeddedServer
from redis_state_sync.keys import Keys
from redis_state_sync.store import Store
from redis_state_sync.testing import ScriptedStore
from redis_state_sync.version import Version

WAIT = 60.0
POLLS = 1000
ENDS: dict[str, Callable[[], object]] = {
    "os_exit": lambda: os._exit(0),
    "sys_exit": lambda: sys.exit(0),
    "returns": lambda: None,
}


class Family:
    """What the parent has, and what parent and child do with it."""

    def __init__(self, stack: ExitStack) -> None:
        self.server = stack.enter_context(EmbeddedServer())
        self.store = open_store(self.server.url)
        self.uploads = ScriptedStore(open_store(self.server.url))
        self.publisher = stack.enter_context(
            closing(StatePublisher(self.uploads, "n", connect_timeout_s=WAIT))
        )
        self.handle = self.publisher.publish({"number": 1})
        self.handle.wait(WAIT)
        self.subscriber = stack.enter_context(
            closing(StateSubscriber(open_store(self.server.url), "n", poll_timeout_s=WAIT))
        )
        self.subscriber.refresh(lambda s: s["number"])
        for each in (0, 1):
            self.store.append(
                Keys(f"of/{each}"), Version(1, 1), b"%d" % each, ttl_s=60, timeout=WAIT
            )

    def poll(self, which: int) -> None:
        """Every reply must be one's own."""
        for _ in range(POLLS):
            assert self.store.newest(Keys(f"of/{which}"), timeout=WAIT)[0].manifest == b"%d" % which

    def in_child(self) -> None:
        """Reads what it wants, and gets clear answers from what is the parent's."""
        signal.alarm(100)
        self.poll(1)
        read(self.subscriber)
        refused(lambda: self.publisher.publish({"number": 9}))
        refused(lambda: self.publisher.flush(WAIT))
        refused(lambda: self.handle.wait(WAIT))
        self.publisher.close()
        self.server.stop()

    def in_parent(self, connections: list[Any]) -> None:
        """Nothing has happened to it."""
        assert self.server.pid is not None
        self.poll(0)
        version = self.publisher.publish({"number": 2}).wait(WAIT)
        snapshot = self.subscriber.refresh(lambda s: s["number"])
        assert snapshot is not None
        assert snapshot.version == version
        assert self.connections() == connections

    def connections(self) -> list[Any]:
        """Those that are idle, as they are between two calls."""
        self.publisher.flush(WAIT)
        stores: list[Any] = [self.store, self.subscriber.store]
        return [store._exchange._connector._idle for store in stores]


def refused(call: Callable[[], object]) -> None:
    try:
        call()
    except SettingsError as error:
        said = str(error)
    else:
        said = "nothing"
    assert "in another process (a fork)" in said


def read(subscriber: StateSubscriber) -> None:
    """In the child: the newest version, whatever its parent had of it."""
    assert subscriber.wait_for(lambda s: s["number"], timeout=WAIT)


def forked(kind: str) -> None:
    """The child ends in one of several ways, while the parent goes on."""
    with ExitStack() as stack:
        family = Family(stack)
        connections = family.connections()
        child = os.fork()
        if not child:
            stack.pop_all()  # The parent closes them.
            family.in_child()
            ENDS[kind]()
            return
        family.poll(0)
        ended(child)
        family.in_parent(connections)


def in_an_upload(kind: str) -> None:
    """The publishing thread is in the middle of an upload."""
    with ExitStack() as stack:
        family = Family(stack)
        with family.uploads.paused("put_blobs"):
            uploads = family.uploads.calls["put_blobs"]
            handle = family.publisher.publish({"rl_module/p": np.zeros(1 << 20)})
            family.uploads.wait_for_calls("put_blobs", uploads + 1)
            child = os.fork()
            if not child:
                stack.pop_all()
                refused(lambda: handle.wait(WAIT))
                family.in_child()
                ENDS[kind]()
                return
            ended(child)
            assert handle.stored is None
        handle.wait(WAIT)
        family.in_parent(family.connections())


def started(method: str) -> None:
    """Store and reader are handed to a process of `multiprocessing`."""
    with ExitStack() as stack:
        family = Family(stack)
        connections = family.connections()
        context: Any = multiprocessing.get_context(method)
        process = context.Process(target=work, args=(family.store, family.subscriber))
        process.start()
        family.poll(0)
        process.join(WAIT)
        assert process.exitcode == 0
        process.close()
        family.in_parent(connections)


def work(store: Store, subscriber: StateSubscriber) -> None:
    """In a process of `multiprocessing`."""
    for _ in range(POLLS):
        assert store.newest(Keys("of/1"), timeout=WAIT)[0].manifest == b"1"
    read(subscriber)


def orphan(_: str) -> None:
    """Says who is who, and waits to be killed; the child lives on."""
    server = EmbeddedServer()
    child = os.fork()
    if child:
        print(server.pid, server.socket_path.parent, child, flush=True)
    time.sleep(100)


def ended(child: int) -> None:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


if __name__ == "__main__":
    {each.__name__: each for each in (forked, in_an_upload, started, orphan)}[sys.argv[1]](
        sys.argv[2]
    )
