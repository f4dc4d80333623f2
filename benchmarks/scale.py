"""A thousand pollers at 10 Hz on one server: simulated ones that poll, and real ones that fetch."""

from __future__ import annotations

import heapq
import random
import select
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import hiredis
import numpy as np

from benchmarks import arms, machine
from benchmarks.lab import Lab
from benchmarks.lean import poll_bytes
from benchmarks.limits import Address, connect
from benchmarks.measures import Measure, percentile, short
from benchmarks.options import Options
from benchmarks.readers import COMPONENT
from benchmarks.results import Results
from benchmarks.rounds import Watch
from benchmarks.states import MB, change, make_state
from benchmarks.workers import ProcessWorker, call_all, closing
from redis_state_sync import StatePublisher, Version

NAMESPACE = "benchmark/scale"
HZ = 10
PUBLISH_EVERY_S = 1.0
PROCESSES = 4
P50, P99 = "scale: simulated poll p50", "scale: simulated poll p99"
RATE, WANTED = "scale: polls per second", "scale: polls per second wanted"
CPU = "scale: server CPU"
LATE = "scale: by how much simulated polls are sent late, p99"
AGE = "scale: publish until a real reader has applied, p50"


@dataclass(frozen=True)
class Polled:
    """By one process of simulated pollers.

    Args:
        taken: Seconds from sending a poll until its reply was here.
        late: Seconds by which polls were sent late: of the simulation, not of the server.
        seconds: How long it all took.
    """

    taken: np.ndarray[Any, Any]
    late: np.ndarray[Any, Any]
    seconds: float


@dataclass
class _Connection:
    """One simulated poller."""

    socket: socket.socket
    reader: hiredis.Reader
    held: Version
    due_at: float = 0.0
    sent_at: float = 0.0
    polls: int = 0


class SimulatedPollers:
    """Connections of one process that poll as readers do and take note of the version, no more.

    Args:
        address: Of our server.
        namespace: Where.
        held: The version that they have.
        count: How many.
    """

    def __init__(self, address: Address, namespace: str, held: Version, count: int) -> None:
        self._namespace = namespace
        self._epoll = select.epoll()
        self._connections: dict[int, _Connection] = {}
        for _ in range(count):
            connection = connect(address)
            self._connections[connection.fileno()] = _Connection(connection, hiredis.Reader(), held)
            self._epoll.register(connection.fileno(), select.EPOLLIN)
        self._commands: dict[Version, tuple[bytes, bytes]] = {}

    def run(self, seconds: float) -> Polled:
        """Polls at `HZ`; one whose reply is late polls again as soon as it is there."""
        period, started = 1 / HZ, time.monotonic()
        # Spread evenly, as EnvRunners that no one synchronised.
        step = period / len(self._connections)
        due = [(started + i * step, number) for i, number in enumerate(self._connections)]
        heapq.heapify(due)
        taken: list[float] = []
        late: list[float] = []
        while (now := time.monotonic()) < started + seconds:
            while due and due[0][0] <= now:
                at, number = heapq.heappop(due)
                self._poll(self._connections[number], at)
                late.append(self._connections[number].sent_at - at)
            wait = max(0.0, due[0][0] - time.monotonic()) if due else 0.01
            for number, _ in self._epoll.poll(wait):
                connection = self._connections[number]
                if self._answered(connection):
                    taken.append(time.monotonic() - connection.sent_at)
                    heapq.heappush(due, (connection.due_at + period, number))
        return Polled(np.array(taken), np.array(late), time.monotonic() - started)

    def _poll(self, connection: _Connection, due_at: float) -> None:
        held = connection.held
        if held not in self._commands:
            self._commands[held] = poll_bytes(self._namespace, held)
        poll, look = self._commands[held]
        connection.polls += 1
        # Once in a second a reader looks at the very top instead.
        connection.due_at, connection.sent_at = due_at, time.monotonic()
        connection.socket.send(poll if connection.polls % HZ else look)

    @staticmethod
    def _answered(connection: _Connection) -> bool:
        connection.reader.feed(connection.socket.recv(1 << 16))
        reply = connection.reader.gets()
        if reply is False:
            return False  # The rest is on its way.
        if isinstance(reply, Exception):
            raise reply
        if reply:
            connection.held = max(connection.held, Version.parse(reply[0][0]))
        return True


class RealReader:
    """One of the package's own readers, for each node: polls at `HZ`, fetches and copies."""

    def __init__(self, places: arms.Places, namespace: str) -> None:
        self._subscriber = arms.subscriber(arms.TCP, places, namespace)
        self._ages: list[float] = []

    def run(self, seconds: float) -> tuple[list[float], int]:
        """Returns the ages in s of the versions when they were applied, and the number of polls."""
        self._ages = []
        end, polls = time.monotonic() + seconds, 0
        due = time.monotonic() + random.random() / HZ  # As EnvRunners that no one synchronised.
        while due < end:
            time.sleep(max(0.0, due - time.monotonic()))
            self._subscriber.refresh(self._apply)
            polls += 1
            due = max(due + 1 / HZ, time.monotonic())
        return self._ages, polls

    def _apply(self, snapshot: Any) -> None:
        copied = snapshot[COMPONENT]  # Decoding copies.
        self._ages.append(time.monotonic() - float(copied["published_at"]))


def run(lab: Lab, options: Options, watch: Watch) -> list[Measure]:
    """One long run; each second of it is no round of its own, so the spreads are of polls."""
    fetchers = options.scale_fetchers
    simulated = options.scale_pollers - fetchers
    publisher = arms.publisher(arms.UNIX, lab.places, NAMESPACE)
    state: dict[str, Any] = dict(make_state(MB))
    _publish(publisher, state)
    held = publisher.last_version
    assert held is not None
    shares = [simulated // PROCESSES + (i < simulated % PROCESSES) for i in range(PROCESSES)]
    address = lab.places.address(arms.TCP)
    pollers = [ProcessWorker(SimulatedPollers, address, NAMESPACE, held, n) for n in shares]
    readers = [ProcessWorker(RealReader, lab.places, NAMESPACE) for _ in range(fetchers)]
    try:
        with closing([*pollers, *readers]):
            call_all([*pollers, *readers], "run", 2.0)  # Not counted.
            watch("scale: polling", 0, 1)
            for worker in (*pollers, *readers):
                worker.start("run", options.scale_seconds)
            before = machine.cpu_seconds(lab.server_pid)
            started = time.monotonic()
            published = _keep_publishing(publisher, state, started + options.scale_seconds)
            used = machine.cpu_seconds(lab.server_pid) - before
            took = time.monotonic() - started
            polled = [poller.result() for poller in pollers]
            applied = [reader.result() for reader in readers]
    finally:
        publisher.close()
    watch("scale: polling", 1, 1)
    lab.notes.append(
        f"scale: {simulated} of {options.scale_pollers} pollers are simulated by bare connections "
        f"in {PROCESSES} processes; {fetchers} are real readers that fetch each version, as one of "
        f"each node does where {options.scale_pollers // fetchers} EnvRunners share a node cache; "
        f"{published} versions of 1 MB were published in {took:.0f} s"
    )
    return _measures(options, polled, applied, used / took)


def _measures(
    options: Options,
    polled: Sequence[Polled],
    applied: Sequence[tuple[list[float], int]],
    cpu: float,
) -> list[Measure]:
    case = f"{options.scale_pollers} pollers at {HZ} Hz, {options.scale_fetchers} fetch 1 MB/s"
    milliseconds = 1e3 * np.concatenate([p.taken for p in polled])
    late = 1e3 * np.concatenate([p.late for p in polled])
    ages = [1e3 * age for found, _ in applied for age in found]
    rate = sum(len(p.taken) / p.seconds for p in polled)
    rate += sum(polls for _, polls in applied) / options.scale_seconds
    found = {
        (P50, "ms"): float(np.percentile(milliseconds, 50)),
        (P99, "ms"): float(np.percentile(milliseconds, 99)),
        (LATE, "ms"): float(np.percentile(late, 99)),
        (WANTED, "polls/s"): float(HZ * options.scale_pollers),
        (RATE, "polls/s"): rate,
        (CPU, "% of a core"): 100 * cpu,
        (AGE, "ms"): percentile(ages, 50),
    }
    return [Measure(m, case, unit, values={arms.TCP: [v]}) for (m, unit), v in found.items()]


def _keep_publishing(publisher: StatePublisher, state: dict[str, Any], end: float) -> int:
    published = 0
    while (left := end - time.monotonic()) > 0:
        _publish(publisher, state)
        published += 1
        time.sleep(min(PUBLISH_EVERY_S, left))
    return published


def _publish(publisher: StatePublisher, state: dict[str, Any]) -> None:
    change({name: array for name, array in state.items() if name != "published_at"})
    state["published_at"] = time.monotonic()
    publisher.publish({COMPONENT: state}).wait(30)


def table(results: Results) -> str:
    """Markdown of the one run."""
    lines = ["| | |", "|---|---|"]
    for metric in (WANTED, RATE, P50, P99, LATE, CPU, AGE):
        for measure in results.measures(metric):
            (value,) = measure.values[arms.TCP]
            what = metric.partition(": ")[2]
            lines.append(f"| {what} | {short(value)} {measure.unit} |")
    return "\n".join(lines) if len(lines) > 2 else "_Not measured._"
