"""`redis-state-sync watch`: one namespace, live."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from time import sleep
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from redis_state_sync.cli import output
from redis_state_sync.cli.options import TIMEOUT_S, AsJson, Namespace, Timeout, Url
from redis_state_sync.cli.overview import Overview, look_at
from redis_state_sync.cli.session import history
from redis_state_sync.cli.view import view_of
from redis_state_sync.errors import RedisStateSyncError
from redis_state_sync.history import History
from redis_state_sync.rollback import was_refreshed

_MOST_RATES = 60
# Lines and columns of the frame and its padding.
_FRAME = 4
_SIDES = 6
# Lines above what was there before an outage.
_PROBLEM = 4


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen at one moment.

    Args:
        at: A `time.monotonic()`.
        overview: What there was; None if that could not be seen.
        problem: Why not.
        alive: Whether a learner is at work, as far as two looks tell.
        rate: Versions per second since the look before; None if another learner took over.
    """

    at: float
    overview: Overview | None = None
    problem: str | None = None
    alive: bool | None = None
    rate: float | None = None


class Watched:
    """What is shown of a namespace, look after look.

    Args:
        namespace: Which one.
        where: The store.
        server: What it runs.
    """

    def __init__(self, namespace: str, where: str, server: str) -> None:
        self._namespace = namespace
        self._where = where
        self._server = server
        self._rates: deque[float | None] = deque(maxlen=_MOST_RATES)
        self._last: tuple[str, Overview] | None = None

    def panel(self, look: Look, *, width: int, height: int | None = None) -> Panel:
        """What a terminal of this size shows."""
        room = None if height is None else height - _FRAME
        return Panel(
            self._body(look, width - _SIDES, room),
            title=Text(f" {self._namespace} ", style="bold"),
            title_align="left",
            subtitle=Text(f" {time.strftime('%H:%M:%S')}, Ctrl-C ends ", style="dim"),
            subtitle_align="right",
            border_style="red" if look.overview is None else "blue",
            padding=(1, 2),
            width=width,
        )

    def plain(self, look: Look) -> tuple[RenderableType, ...]:
        """The same without a frame, for files and other programs."""
        return f"{self._namespace}  {time.strftime('%H:%M:%S')}", self._body(look, None, None), ""

    def _body(self, look: Look, width: int | None, height: int | None) -> RenderableType:
        self._rates.append(look.rate)
        if look.overview is not None:
            self._last = time.strftime("%H:%M:%S"), look.overview
            return self._view(look.overview, look.alive, width, height)
        problem = Text(str(look.problem), style="bold red")
        if self._last is None:
            return problem
        # What was there is of use to whoever looks for the cause.
        at, overview = self._last
        note = Text(f"at {at} it was:", style="dim")
        room = None if height is None else height - _PROBLEM
        return Group(problem, "", note, self._view(overview, None, width, room))

    def _view(
        self, overview: Overview, alive: bool | None, width: int | None, height: int | None
    ) -> RenderableType:
        return view_of(
            overview,
            self._where,
            self._server,
            alive,
            rates=tuple(self._rates),
            width=width,
            height=height,
        )


def watch(
    namespace: Namespace,
    interval: Annotated[float, typer.Option(min=1.0, help="Seconds between looks.")] = 1.0,
    count: Annotated[
        int | None, typer.Option(min=1, help="How many looks; without it, until Ctrl-C.")
    ] = None,
    url: Url = None,
    timeout: Timeout = TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Shows what `status` shows, again and again, and how fast versions follow each other.

    Goes on when the server is away for a while. With --json it prints a line for each look.
    """
    console = output.console()
    with history(namespace, url, timeout, as_json=as_json) as opened:
        seen = looks(opened, interval, count)
        first = next(seen)
        if first.problem is not None:
            look_at(opened)  # What is wrong from the start is an error.
        where, server = opened.store.describe(), opened.store.server_facts(timeout=timeout)
        view = Watched(namespace, where, server)
        try:
            if as_json:
                for look in _from(first, seen):
                    print(json.dumps(_as_json(look), ensure_ascii=False), flush=True)
            elif console.is_terminal:
                _show(view, _from(first, seen), console)
            else:
                for look in _from(first, seen):
                    console.print(*view.plain(look), sep="\n")
        except KeyboardInterrupt:
            pass  # This is how it ends.


def _show(view: Watched, looks: Iterator[Look], console: Console) -> None:
    """Draws each look over the one before, without erasing it first, and leaves the last one."""
    panel: Panel | None = None
    try:
        with Live(console=console, auto_refresh=False, screen=True) as live:
            for look in looks:
                width = output.readable_width(console) or console.width
                panel = view.panel(look, width=width, height=console.height)
                live.update(panel, refresh=True)
    finally:
        if panel is not None:
            console.print(panel)


def _from(first: Look, others: Iterator[Look]) -> Iterator[Look]:
    yield first
    yield from others


def looks(opened: History, interval: float, count: int | None) -> Iterator[Look]:
    """Looks again and again.

    Args:
        opened: At what.
        interval: Seconds between two looks.
        count: How many looks; None: it never ends.
    """
    before: Look | None = None
    number = 0
    while count is None or number < count:
        if number:
            sleep(interval)
        number += 1
        look = _look(opened, before)
        yield look
        # What was seen before an outage says nothing of now.
        before = look if look.overview is not None else None


def _look(opened: History, before: Look | None) -> Look:
    at = time.monotonic()
    try:
        overview = look_at(opened)
    except RedisStateSyncError as error:
        return Look(at, problem=str(error))
    if before is None or before.overview is None:
        return Look(at, overview)
    old, passed = before.overview, at - before.at
    alive = was_refreshed(old.expires_in_s, overview.expires_in_s, passed)
    rate = None
    if old.newest and overview.newest:
        last, now = old.newest.version, overview.newest.version
        alive = alive or now != last
        if now.generation == last.generation:
            rate = max(0, now.number - last.number) / passed
    return Look(at, overview, alive=alive, rate=rate)


def _as_json(look: Look) -> dict[str, object]:
    found = look.overview.as_json() if look.overview else {"problem": look.problem}
    return {"learner_at_work": look.alive, "versions_per_s": look.rate, **found}
