"""A learner or a reader in a process of its own: does what it is told, a word a line.

``python -m tests.contract.node_process URL NAMESPACE``. Each answer is a line of JSON.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
from contextlib import ExitStack
from typing import Any

import numpy as np

from redis_state_sync import Snapshot, StatePublisher, StateSubscriber, open_store
from redis_state_sync.events import Event, Failed, Fetched
from redis_state_sync.redis_store import RedisStore
from redis_state_sync.testing import ScriptedStore

WAIT = 20.0
LARGE = 3 << 20
"""Bytes of each of the two components that are large: more than what a poll and a note take."""
STATE_BYTES = 2 * LARGE


def state(number: int, large: int = LARGE) -> dict[str, Any]:
    """A state of which all differs from other ones."""
    weights = {f"rl_module/{name}": _weights(number, name, large) for name in "pq"}
    return {**weights, "number": number}


def _weights(number: int, name: str, size: int) -> dict[str, Any]:
    start = number * 1_000_003 + ord(name)
    return {"w": np.arange(start, start + size // 8, dtype=np.int64)}


def number_in(snapshot: Snapshot) -> int:
    """Its number.

    Raises:
        AssertionError: If it is not one state, whole.
    """
    number = int(snapshot["number"])
    for name in "pq":
        found = snapshot.view(f"rl_module/{name}")["w"]
        assert np.array_equal(found, _weights(number, name, found.nbytes)["w"]), number
    return number


class _Process:
    def __init__(self, url: str, namespace: str) -> None:
        self._url, self._namespace = url, namespace
        self._stack = ExitStack()
        self._publisher: StatePublisher | None = None
        self._fetched = 0
        self._failed: list[str] = []
        self._kept: list[tuple[int, Snapshot, Any]] = []
        self._make_subscriber({})

    def _make_subscriber(self, settings: dict[str, Any]) -> None:
        self._subscriber = StateSubscriber(
            open_store(self._url, stall_timeout_s=WAIT),
            self._namespace,
            poll_timeout_s=WAIT,
            **{"stall_timeout_s": WAIT, **settings},
        )
        self._watch()

    def _watch(self) -> None:
        # Not from the start: a copy of it travels without what observes it.
        self._subscriber._observers = (self._note,)
        self._subscriber._init_state()

    def _note(self, event: Event) -> None:
        if isinstance(event, Fetched):
            self._fetched += event.bytes_fetched
        elif isinstance(event, Failed):
            self._failed.append(event.category)

    def limit(self, size: str) -> object:
        """The node's cache may take so many bytes."""
        return self._make_subscriber({"node_cache_bytes": int(size)})

    def patience(self, seconds: str) -> object:
        """Waits so long for others that do not go on."""
        return self._make_subscriber({"stall_timeout_s": float(seconds)})

    def publish(self, number: str, large: str = str(LARGE)) -> object:
        """Stores a state."""
        if self._publisher is None:
            store = open_store(self._url, stall_timeout_s=WAIT)
            self._store = ScriptedStore(store)
            self._publisher = StatePublisher(
                self._store, self._namespace, connect_timeout_s=WAIT, transfer_timeout_s=WAIT
            )
        publication = self._publisher.publish(state(int(number), int(large)))
        return str(publication.wait(WAIT))

    def hang(self, operation: str, number: str) -> object:
        """Publishes a state, and says so when this operation has begun; it never ends."""
        assert self._publisher is not None
        self._publisher.flush(WAIT)
        calls = self._store.calls[operation]
        self._stack.enter_context(self._store.paused(operation))
        self._publisher.publish(state(int(number)))
        self._store.wait_for_calls(operation, calls + 1, timeout=WAIT)
        return None

    def hang_filling(self) -> object:
        """Fetches, says so when it is about to receive the first large component, and goes on."""

        class Hanging(RedisStore):
            def get_blobs(self, *args: Any, **kwargs: Any) -> Any:
                print(json.dumps("filling"), flush=True)
                sys.stdin.readline()
                return super().get_blobs(*args, **kwargs)

        self._subscriber.store.__class__ = Hanging
        return self.refresh()

    def refresh(self) -> object:
        """Applies the newest version. Which state it has now, and what that took."""
        self._fetched, self._failed = 0, []
        numbers: list[int] = []
        self._subscriber.refresh(lambda snapshot: numbers.append(number_in(snapshot)))
        return {"number": (numbers or [None])[0], "fetched": self._fetched, "failed": self._failed}

    def keep(self) -> object:
        """Applies the newest version, and keeps it, with views of its arrays."""

        def apply(snapshot: Snapshot) -> None:
            number = number_in(snapshot)
            self._kept.append((number, snapshot, snapshot.view("rl_module/p")["w"]))

        self._subscriber.refresh(apply)
        return len(self._kept)

    def kept(self) -> object:
        """Looks at all that was kept."""
        for number, snapshot, view in self._kept:
            assert number_in(snapshot) == number
            assert np.array_equal(view, _weights(number, "p", view.nbytes)["w"])
        return [number for number, _, _ in self._kept]

    def scribble(self) -> object:
        """Writes to every array of the newest version, in its place."""

        def apply(snapshot: Snapshot) -> None:
            for name in "pq":
                snapshot.view(f"rl_module/{name}")["w"][:] = -1
                snapshot[f"rl_module/{name}"]["w"][:] = -1

        return self._subscriber.refresh(apply) is not None

    def travel(self) -> object:
        """The subscriber is pickled, and its copy used from now on."""
        self._subscriber._observers = ()
        self._subscriber = pickle.loads(pickle.dumps(self._subscriber))
        self._watch()
        return None

    def forked(self) -> object:
        """As `refresh`, in a forked child."""
        ours, theirs = os.pipe()
        if not os.fork():
            with os.fdopen(theirs, "w") as answer:
                answer.write(json.dumps(self.refresh()))
            os._exit(0)
        os.close(theirs)
        with os.fdopen(ours) as answer:
            found: object = json.loads(answer.read())
        os.wait()
        return found

    def run(self) -> None:
        """Until its input ends."""
        for line in sys.stdin:
            word, *arguments = line.split()
            print(json.dumps(getattr(self, word)(*arguments)), flush=True)
        self._stack.close()
        if self._publisher is not None:
            self._publisher.close()
        self._subscriber.close()


if __name__ == "__main__":
    _Process(*sys.argv[1:]).run()
