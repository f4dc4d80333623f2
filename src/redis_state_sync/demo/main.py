"""From options to an exit status: server, run, view, summary, plot; and everything ended again."""

from __future__ import annotations

import contextlib
import logging
import signal
import time
from collections.abc import Iterator
from types import FrameType

from rich.console import Console
from rich.table import Table

from redis_state_sync.demo.options import Options
from redis_state_sync.demo.plot import save_plot
from redis_state_sync.demo.session import Run, Session
from redis_state_sync.demo.summary import rows, verdict
from redis_state_sync.demo.timeline import Timeline
from redis_state_sync.demo.view import NoteLogs, make_view
from redis_state_sync.embedded import EmbeddedServer
from redis_state_sync.errors import RedisStateSyncError
from redis_state_sync.publisher import StatePublisher

_INTERRUPTED = 130
_LOGGERS = ("redis_state_sync", "ray.redis_state_sync")


def run_demo(options: Options) -> int:
    """Runs the demo and returns its exit status."""
    console = Console()
    timeline = Timeline()
    interrupted = False
    try:
        with contextlib.ExitStack() as stack, _terminable():
            server = None
            if options.url is None:
                server = stack.enter_context(EmbeddedServer())
            console.print(_starting(options), highlight=False)
            run = _make_run(options, server.url if server else str(options.url))
            stack.callback(run.close)
            _watch(console, options, timeline, run, server)
    except KeyboardInterrupt:
        interrupted = True
    except RedisStateSyncError as error:
        console.print(f"[bold red]{type(error).__name__}[/]: ", end="")
        console.print(str(error), markup=False, highlight=False, soft_wrap=True)
        return 1
    return _conclude(console, options, timeline, interrupted)


def _starting(options: Options) -> str:
    what = "three reader processes" if options.core else "Ray and two EnvRunners (10-20 s)"
    return f"starting {'a server and ' if options.url is None else ''}{what} ..."


def _make_run(options: Options, url: str) -> Run:
    if options.core:
        from redis_state_sync.demo.core_run import CoreRun

        return CoreRun(options, url)
    # Only now, and only here: the demo without Ray must not import it.
    from redis_state_sync.demo.rllib_run import RllibRun

    return RllibRun(options, url)


def _watch(
    console: Console, options: Options, timeline: Timeline, run: Run, server: EmbeddedServer | None
) -> None:
    view = make_view(console, options, _facts(run.publisher))
    session = Session(options, timeline, view, server)
    with view, _own_logs_shown(NoteLogs(view, time.time())):
        session.begin()
        try:
            run.train(session)
        except KeyboardInterrupt:
            session.note("interrupted")
            raise
        finally:
            session.end()


def _facts(publisher: StatePublisher) -> list[str]:
    store, namespace = publisher.store, publisher.keys.namespace
    return [
        f"server     {store.server_facts(timeout=2.0)} at {store.describe()}",
        f"namespace  {namespace}, generation {publisher.generation}",
    ]


@contextlib.contextmanager
def _own_logs_shown(handler: logging.Handler) -> Iterator[None]:
    """Sends what the package logs to the view; stderr would tear the live panel apart."""
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    before = [(logger.propagate, logger.level) for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.propagate = False
        logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        for logger, (propagate, level) in zip(loggers, before, strict=True):
            logger.removeHandler(handler)
            logger.propagate = propagate
            logger.setLevel(level)


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Treats SIGTERM as Ctrl-C, so that `timeout` and CI, too, leave no server behind."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _conclude(console: Console, options: Options, timeline: Timeline, interrupted: bool) -> int:
    if timeline.samples:
        table = Table(title=f"{options.title}, seed {options.seed}", show_header=False)
        for name, value in rows(timeline, options):
            table.add_row(name, value)
        console.print(table, highlight=False)
        save_plot(timeline, options, options.out)
        console.print(f"plot: {options.out}", highlight=False, soft_wrap=True)
    if interrupted:
        console.print("interrupted; server and readers are stopped")
        return _INTERRUPTED
    status, sentence = verdict(timeline, options)
    style = "bold green" if status == 0 else "bold red"
    console.print(sentence, style=style, highlight=False, soft_wrap=True)
    return status
