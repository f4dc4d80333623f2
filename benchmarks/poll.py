"""Poll, nothing new: how long one takes, and how many one server answers."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks import arms
from benchmarks.lab import Lab
from benchmarks.lean import LeanPollers, poll_bytes
from benchmarks.loops import Latencies, together
from benchmarks.measures import Measure
from benchmarks.options import SMALL, Options
from benchmarks.pollers import CLIENT_KEY, Poller, RayPoller
from benchmarks.rounds import Turns, Watch
from benchmarks.states import make_state
from benchmarks.workers import ProcessWorker, RayWorker, Worker, call_all, closing
from redis_state_sync import StatePublisher, Version

NAMESPACE = "benchmark/poll"
P50, P99, RATE, CAPACITY = "poll p50", "poll p99", "polls per second", "polls one server sustains"
OTHERS = (arms.TCP, arms.UNIX, arms.TRACKING, arms.CLIENT, arms.RAW_TCP, arms.RAW_UNIX)
# More would have Ray's own threads fight for the cores.
_MOST_ACTORS = 6
_LEAN_PROCESSES, _LEAN_CONNECTIONS = 2, 32
CAPACITY_CASE = f"{_LEAN_PROCESSES * _LEAN_CONNECTIONS} connections"


def pollers_case(count: int) -> str:
    """What a case is called."""
    return "1 poller" if count == 1 else f"{count} pollers"


def run(lab: Lab, options: Options, watch: Watch) -> list[Measure]:
    """All cases of the section."""
    publisher = publish(lab)
    try:
        assert publisher.last_version is not None
        most = max(options.pollers)
        pollers = [ProcessWorker(Poller, lab.places, NAMESPACE) for _ in range(most)]
        actors = [
            RayWorker(RayPoller, lab.ray.handle, lab.ray.seq_no)
            for _ in range(min(most, _MOST_ACTORS))
        ]
        with closing([*pollers, *actors]):
            measures: list[Measure] = []
            for count in options.pollers:
                measures += _latencies(pollers[:count], actors, count, options, watch)
            measures.append(_capacity(lab, publisher.last_version, actors, options, watch))
    finally:
        publisher.close()
    return measures


def publish(lab: Lab) -> StatePublisher:
    """Gives both servers something that all pollers hold."""
    publisher = arms.publisher(arms.UNIX, lab.places, NAMESPACE)
    state = make_state(SMALL)
    publisher.publish({"rl_module/default_policy": state}).wait(30)
    lab.ray.push_and_wait(state)
    with lab.client() as client:
        client.set(CLIENT_KEY, str(publisher.last_version))
    return publisher


def _latencies(
    pollers: Sequence[Worker],
    actors: Sequence[Worker],
    count: int,
    options: Options,
    watch: Watch,
) -> list[Measure]:
    case = pollers_case(count)
    p50 = Measure(P50, case, "µs")
    p99 = Measure(P99, case, "µs")
    rate = Measure(RATE, case, "polls/s", more_is_better=True)
    for arm in OTHERS:
        call_all(pollers, "prepare", arm)

    def turn(arm: str) -> None:
        if arm == arms.RAY:
            all_calls = ray_loops(actors, count, options.seconds)
        else:
            all_calls = together(call_all(pollers, "poll", arm, options.seconds))
        p50.add(arm, all_calls.microseconds(50))
        p99.add(arm, all_calls.microseconds(99))
        rate.add(arm, all_calls.rate)

    Turns([arms.RAY, *OTHERS], options.rounds).run(turn, watch, f"poll, {case}", [p50, p99, rate])
    return [p50, p99, rate]


def ray_loops(actors: Sequence[Worker], count: int, seconds: float) -> Latencies:
    """`count` closed loops in as few actors as may be, each with its share of threads."""
    used = actors[:count]
    for number, actor in enumerate(used):
        threads = count // len(used) + (number < count % len(used))
        actor.start("poll", threads, seconds)
    return together([actor.result() for actor in used])


def _capacity(
    lab: Lab, held: Version, actors: Sequence[Worker], options: Options, watch: Watch
) -> Measure:
    """Ours with clients that cost nothing; Ray's, which has none, with as many as 64."""
    measure = Measure(CAPACITY, CAPACITY_CASE, "polls/s", more_is_better=True)
    poll, _ = poll_bytes(NAMESPACE, held)
    lean = {
        arm: [
            ProcessWorker(LeanPollers, lab.places.address(arm), poll, _LEAN_CONNECTIONS)
            for _ in range(_LEAN_PROCESSES)
        ]
        for arm in (arms.TCP, arms.UNIX)
    }
    with closing([worker for workers in lean.values() for worker in workers]):

        def turn(arm: str) -> None:
            if arm == arms.RAY:
                count = max(options.pollers)
                measure.add(arm, ray_loops(actors, count, options.seconds).rate)
            else:
                measure.add(arm, sum(call_all(lean[arm], "rate", options.seconds)))

        Turns([arms.RAY, *lean], options.rounds).run(turn, watch, "poll, one server", [measure])
    return measure
