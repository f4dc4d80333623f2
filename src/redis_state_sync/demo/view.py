"""What the user sees while it runs: a live panel on a terminal, plain lines elsewhere."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from redis_state_sync.demo.options import Options
from redis_state_sync.demo.timeline import Sample, Timeline

_BARS = "▁▂▃▄▅▆▇█"
_NOTES = 7
_PLAIN_EVERY_S = 2.0


class View(Protocol):
    """Shows a run. A context manager: what it shows is shown while it is open."""

    def begin(self, timeline: Timeline) -> None:
        """The clock starts, and this is what to show."""
        ...

    def show(self, now: float) -> None:
        """There is something new to see at `now` seconds."""
        ...

    def note(self, now: float, text: str) -> None:
        """Tells something that happened at `now` seconds."""
        ...

    def __enter__(self) -> object: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


def make_view(console: Console, options: Options, facts: Sequence[str]) -> View:
    """The view that suits the console."""
    return (LiveView if console.is_terminal else PlainView)(console, options, facts)


class _BaseView:
    def __init__(self, console: Console, options: Options, facts: Sequence[str]) -> None:
        self._console = console
        self._options = options
        self._facts = facts
        self._timeline = Timeline()

    def begin(self, timeline: Timeline) -> None:
        self._timeline = timeline


class PlainView(_BaseView):
    """One line for each update, for pipes and log files."""

    _shown_at = -_PLAIN_EVERY_S

    def show(self, now: float) -> None:
        """Prints a line, but not too often."""
        sample = self._timeline.last
        if sample is not None and now - self._shown_at >= _PLAIN_EVERY_S:
            self._shown_at = now
            self._print(now, _line(sample))

    def note(self, now: float, text: str) -> None:
        """Prints it at once."""
        self._print(now, f"* {text}")

    def _print(self, now: float, text: str) -> None:
        # Not by rich, which would break lines at 80 columns.
        print(f"{now:6.1f} s  {text}", file=self._console.file, flush=True)

    def __enter__(self) -> object:
        for fact in self._facts:
            print(fact, file=self._console.file, flush=True)
        return self

    def __exit__(self, *exc_info: object) -> None:
        pass


class LiveView(_BaseView):
    """A panel that is drawn again several times a second."""

    def __init__(self, console: Console, options: Options, facts: Sequence[str]) -> None:
        super().__init__(console, options, facts)
        self._notes: list[str] = []
        self._now = 0.0
        self._live = Live(get_renderable=self._draw, console=console, refresh_per_second=4)

    def show(self, now: float) -> None:
        """Takes note; the drawing goes by its own clock."""
        self._now = now

    def note(self, now: float, text: str) -> None:
        """Adds a line below the numbers."""
        self._now = now
        self._notes = [*self._notes, f"{now:6.1f} s  {text}"][-_NOTES:]

    def __enter__(self) -> object:
        self._live.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._live.stop()

    def _draw(self) -> RenderableType:
        sample = self._timeline.last
        table = Table.grid(padding=(0, 2))
        table.add_column(style="bold", min_width=10)
        table.add_column()
        if sample is None:
            table.add_row("server", "waiting for the first results")
        else:
            for name, value in self._rows(sample):
                table.add_row(name, value)
        facts = Text("\n".join(self._facts), style="dim", overflow="ellipsis", no_wrap=True)
        notes = Text("\n".join(self._notes), overflow="ellipsis", no_wrap=True)
        title = f"{self._options.title}  {self._now:.0f} s of at most {self._options.seconds:.0f} s"
        return Panel(Group(facts, Text(), table, Text(), notes), title=title, title_align="left")

    def _rows(self, sample: Sample) -> list[tuple[str, RenderableType]]:
        outage = self._timeline.outage
        server = Text("● up", style="bold green")
        if not sample.server_up:
            away = f" for {sample.t - outage.down_at:.0f} s" if outage else ""
            server = Text(f"● DOWN{away}", style="bold red")
        elif not sample.healthy:
            server = Text("● up, the learner has not noticed yet", style="bold yellow")
        returns = [s.mean_return for s in self._timeline.samples if s.mean_return is not None]
        target = self._options.target
        goal = f", target {target:g}" if target is not None else ""
        curve = _sparkline(returns, 40, top=max([target or 1.0, *returns]))
        rows: list[tuple[str, RenderableType]] = [
            ("server", server),
            ("version", Text(_versions(sample))),
            ("return", Text(f"{_number(sample.mean_return)}{goal}  {curve}")),
            ("env steps", Text(f"{sample.env_steps:,}")),
            ("times", Text(_times(sample))),
            ("failures", Text(_failures(sample))),
        ]
        if not self._options.core:
            rows.insert(2, ("staleness", Text(_staleness(sample))))
            rows.append(("Ray pushes", Text(str(sample.pushes))))
        return rows


class NoteLogs(logging.Handler):
    """Shows our own log records as notes."""

    def __init__(self, view: View, now: float) -> None:
        super().__init__(logging.INFO)
        self._view = view
        self._offset = now

    def emit(self, record: logging.LogRecord) -> None:
        """Shows one record."""
        self._view.note(record.created - self._offset, f"log: {record.getMessage()}")


def _line(sample: Sample) -> str:
    staleness = "" if sample.staleness is None else f"staleness {_staleness(sample)}  "
    return (
        f"server {'up  ' if sample.server_up else 'DOWN'}  {_versions(sample)}  {staleness}"
        f"return {_number(sample.mean_return)}  steps {sample.env_steps}  {_times(sample)}"
    )


def _versions(sample: Sample) -> str:
    held = " ".join("-" if number is None else str(number) for number in sample.held)
    return f"version {sample.newest}, readers act with {held} (lag {sample.lag})"


def _staleness(sample: Sample) -> str:
    return "-" if sample.staleness is None else f"{sample.staleness:.1f} updates"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _times(sample: Sample) -> str:
    parts = (("poll", sample.poll_s), ("fetch", sample.fetch_s), ("publish", sample.publish_s))
    return "  ".join(
        f"{name} {'-' if seconds is None else f'{seconds * 1000:.2f} ms'}"
        for name, seconds in parts
    )


def _failures(sample: Sample) -> str:
    return ", ".join(f"{count} {what}" for what, count in sorted(sample.failures.items())) or "none"


def _sparkline(values: Sequence[float], width: int, *, top: float) -> str:
    if not values:
        return ""
    step = max(1.0, len(values) / width)
    chosen = [values[min(len(values) - 1, int(i * step))] for i in range(min(width, len(values)))]
    return "".join(
        _BARS[max(0, min(len(_BARS) - 1, int(value / top * len(_BARS))))] for value in chosen
    )
