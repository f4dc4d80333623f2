"""Many readers on one node that begin at the same moment, and who publishes to them."""

from __future__ import annotations

import contextlib
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks import arms, machine
from benchmarks.lab import Lab
from benchmarks.readers import COMPONENT, Applied, RayReader, Reader
from benchmarks.states import State, change, make_state, size
from benchmarks.workers import ProcessWorker, RayWorker, Worker, call_all, closing

# As many actors that import torch take their time on two cores.
_ACCEPT_TIMEOUT_S = 300


class Gun:
    """Starts readers, in the same way for all arms: a byte on a socket, and not a call of Ray's."""

    def __init__(self, folder: str) -> None:
        self.path = str(Path(folder) / "gun")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen(256)
        self._listener.settimeout(_ACCEPT_TIMEOUT_S)
        self._connections: list[socket.socket] = []

    def await_readers(self, count: int) -> None:
        """Until so many are there."""
        self._connections += [self._listener.accept()[0] for _ in range(count)]

    def fire(self) -> None:
        """Now."""
        for connection in self._connections:
            connection.send(b"!")

    def close(self) -> None:
        """Lets go of the readers."""
        for connection in (*self._connections, self._listener):
            connection.close()


class Group:
    """The readers of one arm.

    Args:
        arm: Which.
        publish: Publishes, and returns when everyone would see it.
        state: What is published.
        readers: Made, and ready.
        gun: To which they listen.
        bare_bytes: Memory of the readers before there was room for a state in them.
    """

    def __init__(
        self,
        arm: str,
        publish: Callable[[], None],
        state: State,
        readers: list[Worker],
        gun: Gun,
        bare_bytes: int,
    ) -> None:
        self.arm = arm
        self.nbytes = size(state)
        self._publish = publish
        self._state = state
        self._readers = readers
        self._gun = gun
        self._bare_bytes = bare_bytes

    def publish(self) -> None:
        """Publishes a new state."""
        change(self._state)
        self._publish()

    def apply(self) -> None:
        """Has all readers fetch and apply what is new."""
        self._begin()
        self._gun.fire()
        self._end()

    def fan_out(self) -> tuple[float, float]:
        """Publishes a new state to all readers.

        Returns:
            Seconds from the beginning of the publish until the last reader has applied it; and
            until the last has read every weight of it once.
        """
        change(self._state)
        self._begin()
        started = time.monotonic()
        self._publish()
        self._gun.fire()
        ends = self._end()
        return max(e.at for e in ends) - started, max(e.used_at for e in ends) - started

    def _begin(self) -> None:
        """Before the publish: no time of Ray's or our own calls is between it and the shot."""
        for reader in self._readers:
            reader.start("wait_and_apply")

    def _end(self) -> list[Applied]:
        ends = [reader.result() for reader in self._readers]
        expected = float(self._state["weight_0"].flat[0])
        if any(end.weight != expected for end in ends):
            raise RuntimeError(f"{self.arm} applied something else than what was published")
        return ends

    def held_bytes(self) -> int:
        """Memory of all readers that is there for the state."""
        return machine.pss_bytes(*(reader.pid for reader in self._readers)) - self._bare_bytes


@contextlib.contextmanager
def open_group(lab: Lab, arm: str, nbytes: int, count: int) -> Iterator[Group]:
    """Starts `count` readers that hold nothing yet."""
    with contextlib.ExitStack() as stack:
        gun = Gun(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        stack.callback(gun.close)
        state = make_state(nbytes)
        readers: list[Worker] = []
        stack.enter_context(closing(readers))
        if arm == arms.RAY:
            for _ in range(count):
                readers.append(RayWorker(RayReader, lab.ray.handle, lab.ray.seq_no, gun.path))

            def publish() -> None:
                lab.ray.push_and_wait(state)

        else:
            namespace = f"benchmark/group/{arm}/{nbytes}/{count}"
            publisher = arms.publisher(arm, lab.places, namespace, history=2)
            stack.callback(publisher.close)
            for _ in range(count):
                readers.append(ProcessWorker(Reader, arm, lab.places, namespace, gun.path))

            def publish() -> None:
                publisher.publish({COMPONENT: state}).wait(120)

        call_all(readers, "idle")
        gun.await_readers(count)
        bare_bytes = machine.pss_bytes(*(reader.pid for reader in readers))
        call_all(readers, "make_module", nbytes)
        yield Group(arm, publish, state, readers, gun, bare_bytes)
