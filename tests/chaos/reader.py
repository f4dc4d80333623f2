"""A reader process, as an EnvRunner is one: refreshes, checks what it got, samples, and again."""

from __future__ import annotations

import random
import sys
import time
from collections import Counter, deque

from redis_state_sync import CodecError, Snapshot, StateSubscriber
from redis_state_sync.components import is_weights
from redis_state_sync.events import Event, Failed, Fetched, Polled
from tests.chaos.bounds import FIRST_TIMEOUT_S, SETTINGS
from tests.chaos.content import Mark, TornError, mark_of
from tests.chaos.process import Process
from tests.chaos.stalls import Gauge

_NOTEWORTHY_S = SETTINGS.poll_timeout_s * 0.8
_BEAT_S = 1.0
_KEPT = 3


class Reader:
    """Follows a namespace, and notes all that it applies."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._journal = process.journal
        self._large = process.options.large
        self._counts: Counter[str] = Counter()
        self._applying_s = self._polled_s = 0.0
        self._worst_s = 0.0
        self._gauge = Gauge()
        # Somebody may keep what was applied: it must stay as it is while others come.
        self._kept: deque[tuple[Mark, Snapshot]] = deque(maxlen=_KEPT)
        self._subscriber = StateSubscriber(
            process.open_store(),
            process.options.namespace,
            writer=process.options.writer,
            name=process.options.name,
            poll_timeout_s=SETTINGS.poll_timeout_s,
            first_timeout_s=FIRST_TIMEOUT_S,
            transfer_timeout_s=SETTINGS.transfer_timeout_s,
            node_cache_bytes=process.node_cache_bytes,
            tracking=process.options.shares,
            observers=[self._note],
        )

    def run(self) -> None:
        """Until it is told to stop."""
        rng = random.Random(self._process.options.seed)
        next_beat, first = time.monotonic() + _BEAT_S, True
        while not self._process.stop.is_set():
            self._gauge.measure_now_and_then()
            self._refresh(first)
            first = False
            if time.monotonic() >= next_beat:
                self._beat()
                next_beat += _BEAT_S
            self._act(rng.uniform(0.005, 0.02))
        self._beat()
        self._subscriber.close()
        self._journal.write("end")

    def _act(self, seconds: float) -> None:
        """Half of the readers prefetch meanwhile, and refresh in flight."""
        if not self._process.options.shares:
            time.sleep(seconds)
            return
        with self._subscriber.prefetching():
            for _ in range(4):
                time.sleep(seconds / 4)
                self._counts["in flight"] += (
                    self._subscriber.refresh_in_flight(self._apply) is not None
                )

    def _refresh(self, first: bool) -> None:
        before = Counter(self._counts)
        self._applying_s = self._polled_s = 0.0
        started = time.monotonic()
        self._subscriber.refresh(self._apply)
        ended = time.monotonic()
        # What the receiver does with a state is its own time.
        seconds = ended - started - self._applying_s
        self._counts["refreshes"] += 1
        stalled = self._process.watch.within(started, ended)
        self._worst_s = max(self._worst_s, seconds - stalled)
        if seconds > _NOTEWORTHY_S:
            did = self._counts - before
            self._gauge.measure()
            self._journal.write(
                "slow",
                since=started,
                seconds=seconds,
                stalled=stalled,
                gap_s=self._gauge.gap_s,
                polls=did["polls"],
                polled_s=self._polled_s,
                fetches=did["fetches"],
                notes=did["notes"],
                bytes=did["bytes"],
                first=first,
                shared=self._process.options.shares,
            )

    def _apply(self, snapshot: Snapshot) -> None:
        started = time.monotonic()
        held = self._subscriber.held
        if snapshot.version == held and not any(map(is_weights, snapshot.changed)):
            return  # The rest of what was applied in flight.
        if held is not None and snapshot.version <= held:
            self._journal.write("violation", text=f"back from {held} to {snapshot.version}")
        try:
            for mark, kept in [*self._kept][:1]:
                if mark_of(kept, large=self._large) != mark:
                    raise TornError(f"what was kept as {mark} has changed")
            mark = mark_of(snapshot, large=self._large)
            self._kept.append((mark, snapshot))
        except (TornError, CodecError) as error:
            self._journal.write("violation", text=f"version {snapshot.version}: {error}")
        else:
            self._journal.write(
                "applied",
                version=str(snapshot.version),
                learner=mark.learner,
                counter=mark.counter,
                seq_no=snapshot.weights_seq_no,
                writer=snapshot.manifest.writer.id,
            )
        self._applying_s += time.monotonic() - started

    def _note(self, event: Event) -> None:
        self._process.note(event)
        match event:
            case Polled(newest=newest, seconds=seconds):
                self._counts["polls"] += 1
                self._polled_s += seconds
                self._counts["fetches"] += newest is not None
            case Fetched(bytes_fetched=size):
                self._counts["bytes"] += size
                self._counts["notes"] += 1
            case Failed(operation=operation, category=category):
                self._counts[f"failed: {category}"] += 1
                # It ended before it could be told of. What a poll passes over did not end it.
                unfinished = operation == "poll" and category not in _PASSED_OVER
                self._counts["polls"] += unfinished
                if operation == "fetch" and category in ("blob_missing", "integrity"):
                    self._counts["notes"] += 1  # It asks the learner for the blob.

    def _beat(self) -> None:
        self._journal.write("beat", worst_s=self._worst_s, counts=dict(self._counts))
        self._worst_s = 0.0


_PASSED_OVER = {"behind", "codec", "signature", "integrity"}


def main() -> int:
    """Runs it. Returns the exit code."""
    process = Process("a reader")
    process.listen()
    Reader(process).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
