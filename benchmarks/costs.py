"""What polls and fetches cost the server, and what readers that hold a state cost the node."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence

from benchmarks import arms, machine, poll
from benchmarks.group import open_group
from benchmarks.lab import Lab
from benchmarks.measures import Measure
from benchmarks.options import LARGE, Options
from benchmarks.pollers import Poller, RayPoller
from benchmarks.rounds import Turns, Watch
from benchmarks.states import MB, label
from benchmarks.workers import ProcessWorker, RayWorker, call_all, closing

POLL_CPU, POLL_BYTES = "server CPU per 1000 polls", "server bytes sent per poll"
PUBLISH_CPU = "server CPU per GB published"
FETCH_CPU, FETCH_BYTES = "server CPU per GB fetched", "server bytes sent per byte fetched"
MEMORY = "memory of readers that hold a state"
NODE_MEMORY = "memory of readers, server and learner"
_POLLERS = 4
_FETCH_READERS, _FETCHES = 2, 8


def run(lab: Lab, options: Options, watch: Watch) -> list[Measure]:
    """All cases of the section."""
    largest = max(options.fanned_out)
    count = 16 if 16 in options.readers else max(options.readers)
    return [
        # First: afterwards, pages that Ray's object store has touched once would be missing.
        *_memory(lab, min(LARGE, largest), count, watch),
        *_polls(lab, options, watch),
        *_transfers(lab, min(16 * MB, largest), options, watch),
    ]


def _polls(lab: Lab, options: Options, watch: Watch) -> list[Measure]:
    case = poll.pollers_case(_POLLERS)
    cpu, sent = Measure(POLL_CPU, case, "ms"), Measure(POLL_BYTES, case, "bytes")
    publisher = poll.publish(lab)
    # So many that the scheduler's account is finer than what is accounted for.
    times = max(200, int(2500 * options.seconds))
    try:
        pollers = [ProcessWorker(Poller, lab.places, poll.NAMESPACE) for _ in range(_POLLERS)]
        actors = [RayWorker(RayPoller, lab.ray.handle, lab.ray.seq_no) for _ in range(_POLLERS)]
        ours = (arms.TCP, arms.UNIX, arms.TRACKING)
        with closing([*pollers, *actors]):
            for arm in ours:
                call_all(pollers, "prepare", arm)

            def turn(arm: str) -> None:
                total = times * _POLLERS
                if arm == arms.RAY:
                    used = _cpu([lab.ray.pid], lambda: call_all(actors, "poll_times", times))
                else:
                    before = lab.bytes_sent()
                    asking = lab.bytes_sent() - before
                    used = _cpu(
                        [lab.server_pid], lambda: call_all(pollers, "poll_times", arm, times)
                    )
                    sent.add(arm, max(0, lab.bytes_sent() - before - 2 * asking) / total)
                cpu.add(arm, 1e3 * used / total * 1000)

            Turns([arms.RAY, *ours], options.rounds).run(
                turn, watch, f"costs of polls, {case}", [cpu, sent]
            )
    finally:
        publisher.close()
    return [cpu, sent]


def _transfers(lab: Lab, nbytes: int, options: Options, watch: Watch) -> list[Measure]:
    case = f"{label(nbytes)}, {_FETCH_READERS} readers"
    published = Measure(PUBLISH_CPU, label(nbytes), "s")
    fetched, sent = Measure(FETCH_CPU, case, "s"), Measure(FETCH_BYTES, case, "bytes")
    names = [a for a in (arms.RAY, arms.TCP, arms.UNIX, arms.NODE) if arms.offered(a)]
    with contextlib.ExitStack() as stack:
        groups = {
            arm: stack.enter_context(open_group(lab, arm, nbytes, _FETCH_READERS)) for arm in names
        }

        def turn(arm: str) -> None:
            # Of Ray, the server's actor, and the raylet, which has the objects.
            pids = [lab.ray.pid, lab.ray.raylet_pid] if arm == arms.RAY else [lab.server_pid]
            storing = fetching = out = 0.0
            for _ in range(_FETCHES):
                storing += _cpu(pids, groups[arm].publish)
                before = lab.bytes_sent()
                fetching += _cpu(pids, groups[arm].apply)
                out += lab.bytes_sent() - before
            stored = _FETCHES * groups[arm].nbytes
            published.add(arm, storing / (stored / 1e9))
            fetched.add(arm, fetching / (_FETCH_READERS * stored / 1e9))
            if arm != arms.RAY:
                sent.add(arm, out / (_FETCH_READERS * stored))

        Turns(names, options.rounds).run(
            turn, watch, f"costs of fetches, {case}", [published, fetched, sent]
        )
    lab.empty()
    return [published, fetched, sent]


def _memory(lab: Lab, nbytes: int, count: int, watch: Watch) -> list[Measure]:
    case = f"{label(nbytes)}, {count} readers"
    readers, node = Measure(MEMORY, case, "MB"), Measure(NODE_MEMORY, case, "MB")
    names = [a for a in (arms.RAY, arms.UNIX, arms.NODE) if arms.offered(a)]
    for number, arm in enumerate(names):
        watch(f"memory, {case}, {arm}", number, len(names))
        # The learner is this process; it holds what it publishes, and what it keeps of it.
        others = os.getpid(), lab.ray.raylet_pid if arm == arms.RAY else lab.server_pid
        before = machine.pss_bytes(*others)
        with open_group(lab, arm, nbytes, count) as group:
            # The second one finds the buffers of the first: what a training holds all the time.
            group.fan_out()
            group.fan_out()
            held = group.held_bytes()
            served = machine.pss_bytes(*others) - before
        readers.add(arm, held / MB)
        node.add(arm, (held + served) / MB)
        lab.empty()
    return [readers, node]


def _cpu(pids: Sequence[int], work: Callable[[], object]) -> float:
    """Seconds of CPU that processes used while something was done."""
    before = machine.cpu_seconds(*pids)
    work()
    return machine.cpu_seconds(*pids) - before
