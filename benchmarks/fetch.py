"""Fetch, and fetch and apply: one reader, a state that is new in every weight in each round."""

from __future__ import annotations

from benchmarks import arms
from benchmarks.lab import Lab
from benchmarks.limits import LimitReader, RawServer
from benchmarks.measures import Measure
from benchmarks.options import Options
from benchmarks.readers import COMPONENT
from benchmarks.rllib_readers import RayRllibReader, RllibReader
from benchmarks.rounds import Turns, Watch
from benchmarks.states import change, label, make_state, size
from benchmarks.workers import ProcessWorker, RayWorker, Worker, call, closing

FETCH, APPLY, USE = "fetch", "fetch and apply", "fetch, apply and read once"
_RAW = {arms.RAW_TCP: 0, arms.RAW_UNIX: 1}
# The newest, and the one that a slow reader is still fetching.
_HISTORY = 2


def run(lab: Lab, options: Options, watch: Watch) -> list[Measure]:
    """All cases of the section."""
    ours = [arm for arm in (arms.TCP, arms.UNIX, arms.NODE) if arms.offered(arm)]
    raw = ProcessWorker(RawServer, max(options.sizes))
    with closing([raw]):
        readers: dict[str, Worker] = {
            arms.RAY: RayWorker(RayRllibReader, lab.ray.handle),
            **{arm: ProcessWorker(RllibReader, arm, lab.places) for arm in ours},
            arms.MEMCPY: ProcessWorker(LimitReader, call(raw, "addresses")),
        }
        # What is on a node is there because another reader of the node has fetched it.
        neighbours = (
            [ProcessWorker(RllibReader, arms.NODE, lab.places)] if arms.NODE in ours else []
        )
        with closing([*readers.values(), *neighbours]):
            measures: list[Measure] = []
            for nbytes in options.sizes:
                measures += _case(lab, nbytes, readers, neighbours, options, watch)
                lab.empty()
    return measures


def _case(
    lab: Lab,
    nbytes: int,
    readers: dict[str, Worker],
    neighbours: list[ProcessWorker],
    options: Options,
    watch: Watch,
) -> list[Measure]:
    case = label(nbytes)
    namespace = f"benchmark/fetch/{nbytes}"
    fetch, apply = Measure(FETCH, case, "ms"), Measure(APPLY, case, "ms")
    use = Measure(USE, case, "ms")
    state = make_state(nbytes)
    publisher = arms.publisher(
        arms.NODE if neighbours else arms.UNIX, lab.places, namespace, history=_HISTORY
    )
    limits = readers[arms.MEMCPY]
    call(limits, "prepare", size(state))
    for arm, reader in readers.items():
        if arm == arms.RAY:
            call(reader, "prepare", nbytes, lab.ray.seq_no)
        elif arm != arms.MEMCPY:
            call(reader, "prepare", namespace, nbytes)
    for neighbour in neighbours:
        call(neighbour, "prepare", namespace, nbytes)

    def publish() -> None:
        change(state)
        publisher.publish({COMPONENT: state}).wait(60)
        lab.ray.push_and_wait(state)
        for neighbour in neighbours:
            call(neighbour, "fetch")

    def turn(arm: str) -> None:
        if arm in _RAW:
            fetch.add(arm, 1e3 * call(limits, "receive", _RAW[arm]))
        elif arm == arms.MEMCPY:
            seconds = call(limits, "copy")
            fetch.add(arm, 1e3 * seconds)
            apply.add(arm, 1e3 * seconds)
        else:
            done = call(readers[arm], "fetch")
            if done.weight != float(state["weight_0"].flat[0]):
                raise RuntimeError(f"{arm} applied something else than what was published")
            fetch.add(arm, 1e3 * done.fetched)
            apply.add(arm, 1e3 * done.applied)
            use.add(arm, 1e3 * done.used)

    try:
        turns = Turns([*readers, *_RAW], options.rounds_for(nbytes))
        turns.run(turn, watch, f"fetch, {case}", [fetch, apply, use], before=publish)
    finally:
        publisher.close()
    return [fetch, apply, use]
