"""A learner process: publishes states that say which they are, until it is told or refused."""

from __future__ import annotations

import sys
import threading
import time

from redis_state_sync import StalePublisherError, StatePublisher, StoreError
from redis_state_sync.events import Event, Failed, Published
from tests.chaos.bounds import PUBLISH_CALL_S, SETTINGS
from tests.chaos.content import Mark, state
from tests.chaos.process import Process
from tests.chaos.stalls import Gauge

REFUSED, NOT_STARTED = 10, 11
"""Exit codes: another learner took over; the store could not be reached at start."""


def main() -> int:
    """Runs it. Returns the exit code."""
    process = Process("a learner")
    options, journal = process.options, process.journal
    loud, fenced = threading.Event(), threading.Event()
    loud.set()
    process.on("quiet", loud.clear)
    process.on("loud", loud.set)

    def note(event: Event) -> None:
        process.note(event)
        if isinstance(event, Published):
            journal.write("stored", version=str(event.version), seconds=event.seconds)
        elif isinstance(event, Failed) and event.category == "fenced":
            fenced.set()

    try:
        publisher = StatePublisher(
            process.open_store(),
            options.namespace,
            writer_id=options.writer,
            connect_timeout_s=SETTINGS.connect_timeout_s,
            node_cache_bytes=process.node_cache_bytes,
            observers=[note],
        )
    except StoreError as error:
        journal.write("not_started", category=error.category, text=str(error))
        return NOT_STARTED
    journal.write("claimed", generation=publisher.generation)
    if options.every_s <= 0:
        loud.clear()  # It claims and publishes nothing.
    process.listen()
    counter, gauge = 0, Gauge()
    while not process.stop.wait(abs(options.every_s)):
        if not loud.is_set() and not fenced.is_set():
            continue
        counter += 1
        gauge.measure_now_and_then()
        tree = state(Mark(options.name, counter), large=options.large)
        # Before it is handed over: it may be stored, and read, before the next line is written.
        journal.write("hands", counter=counter)
        started = time.monotonic()
        try:
            publication = publisher.publish(tree, weights_seq_no=counter)
        except StalePublisherError as error:
            journal.write("refused", text=str(error))
            publisher.close()
            return REFUSED
        seconds = time.monotonic() - started
        if seconds > PUBLISH_CALL_S / 2:
            gauge.measure()
        journal.write(
            "handed",
            number=publication.version.number,
            counter=counter,
            seconds=seconds,
            stalled=process.watch.within(started, started + seconds),
            gap_s=gauge.gap_s,
        )
    publisher.close()
    journal.write("end", failures=publisher.stats.failures, stored=publisher.stats.publishes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
