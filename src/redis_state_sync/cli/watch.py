"""`redis-state-sync watch`: one namespace, live."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from time import sleep
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from redis_state_sync.cli import output
from redis_state_sync.cli.options import TIMEOUT_S, AsJson, Namespace, Timeout, Url
from redis_state_sync.cli.overview import Overview, look_at
from redis_state_sync.cli.session import history
from redis_state_sync.cli.status import view_of
from redis_state_sync.errors import RedisStateSyncError
from redis_state_sync.history import History
from redis_state_sync.rollback import was_refreshed


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
        looks = _looks(opened, interval, count)
        first = next(looks)
        if first.problem is not None:
            look_at(opened)  # What is wrong from the start is an error.
        where, server = opened.store.describe(), opened.store.server_facts(timeout=timeout)
        try:
            if as_json:
                for look in _from(first, looks):
                    print(json.dumps(_as_json(look), ensure_ascii=False), flush=True)
            elif console.is_terminal:
                with Live(console=console, auto_refresh=False, screen=False) as live:
                    for look in _from(first, looks):
                        live.update(_panel(look, namespace, where, server), refresh=True)
            else:
                for look in _from(first, looks):
                    console.print(_panel(look, namespace, where, server))
        except KeyboardInterrupt:
            pass  # This is how it ends.


def _from(first: Look, others: Iterator[Look]) -> Iterator[Look]:
    yield first
    yield from others


def _looks(opened: History, interval: float, count: int | None) -> Iterator[Look]:
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


def _panel(look: Look, namespace: str, where: str, server: str) -> RenderableType:
    clock = time.strftime("%H:%M:%S")
    if look.overview is None:
        return Panel(
            Text(str(look.problem), style="bold red"),
            title=f"{namespace}  {clock}",
            title_align="left",
            border_style="red",
        )
    rate = "-" if look.rate is None else f"{look.rate:.1f} versions/s"
    body = Group(
        view_of(look.overview, where, server, look.alive),
        "",
        output.rows([("rate", rate)]),
    )
    return Panel(body, title=f"{namespace}  {clock}", title_align="left")


def _as_json(look: Look) -> dict[str, object]:
    found = look.overview.as_json() if look.overview else {"problem": look.problem}
    return {"learner_at_work": look.alive, "versions_per_s": look.rate, **found}
