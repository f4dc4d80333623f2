"""Objects in processes of their own: forked ones, and Ray actors, called in the same way."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any, Protocol

_PRELOADED = ["benchmarks.preload"]


class WorkerError(Exception):
    """A call failed in a worker; the message is its traceback."""


class Worker(Protocol):
    """An object elsewhere."""

    @property
    def pid(self) -> int:
        """Its process."""
        ...

    def start(self, method: str, *args: Any) -> None:
        """Begins a call."""
        ...

    def result(self) -> Any:
        """Waits for the call that was begun.

        Raises:
            WorkerError: If it failed.
        """
        ...

    def close(self) -> None:
        """Ends the process."""
        ...


class ProcessWorker:
    """An object in a process of its own, which has only what its class imports.

    Args:
        make: Makes the object there. Importable, as the arguments are picklable.
    """

    def __init__(self, make: Callable[..., Any], *args: Any) -> None:
        # As Ray sets it for actors: neither copies with more threads than the other.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_PRELOADED)
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, make, args), daemon=True)
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        """Its process."""
        assert self._process.pid is not None
        return self._process.pid

    def start(self, method: str, *args: Any) -> None:
        """Begins a call."""
        self._pipe.send((method, args))

    def result(self) -> Any:
        """Waits for the call that was begun."""
        try:
            succeeded, value = self._pipe.recv()
        except EOFError:
            raise WorkerError("the worker ended") from None
        if not succeeded:
            raise WorkerError(value)
        return value

    def close(self) -> None:
        """Ends the process."""
        self._pipe.close()
        self._process.join(timeout=5)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


class RayWorker:
    """An object in a Ray actor: it can hold the handle of Ray's state server.

    Args:
        make: Makes the object there. Importable, as the arguments are picklable.
    """

    def __init__(self, make: Callable[..., Any], *args: Any) -> None:
        import ray

        self._ray = ray
        self._actor = ray.remote(num_cpus=0)(Host).remote(make, args)
        self._pending: Any = None

    @property
    def pid(self) -> int:
        """Its process. Waits until the actor is made; making one does not."""
        return int(self._ray.get(self._actor.pid.remote()))

    def start(self, method: str, *args: Any) -> None:
        """Begins a call."""
        self._pending = self._actor.call.remote(method, args)

    def result(self) -> Any:
        """Waits for the call that was begun."""
        try:
            return self._ray.get(self._pending)
        except self._ray.exceptions.RayError as error:
            raise WorkerError(str(error)) from error

    def close(self) -> None:
        """Ends the process."""
        self._ray.kill(self._actor)


class Host:
    """What is in a `RayWorker`'s actor."""

    def __init__(self, make: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._target = make(*args)

    def call(self, method: str, args: tuple[Any, ...]) -> Any:
        """Calls a method of the object."""
        return getattr(self._target, method)(*args)

    def pid(self) -> int:
        """The actor's process."""
        return os.getpid()


def call(worker: Worker, method: str, *args: Any) -> Any:
    """Calls one worker."""
    worker.start(method, *args)
    return worker.result()


def call_all(workers: Sequence[Worker], method: str, *args: Any) -> list[Any]:
    """Calls all workers at once."""
    for worker in workers:
        worker.start(method, *args)
    return [worker.result() for worker in workers]


@contextlib.contextmanager
def closing(workers: Sequence[Worker]) -> Iterator[Sequence[Worker]]:
    """Ends all of them in the end."""
    try:
        yield workers
    finally:
        for worker in workers:
            worker.close()


def _serve(pipe: Connection, make: Callable[..., Any], args: tuple[Any, ...]) -> None:
    try:
        target = make(*args)
    except Exception:
        # The first call is told why.
        pipe.send((False, traceback.format_exc()))
        return
    while True:
        try:
            method, arguments = pipe.recv()
        except EOFError:
            return  # The parent closed its end, or is gone.
        try:
            reply = (True, getattr(target, method)(*arguments))
        except Exception:
            reply = (False, traceback.format_exc())
        pipe.send(reply)
