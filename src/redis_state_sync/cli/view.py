"""A namespace at a glance, for people: what `status` prints once and `watch` draws again."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from redis_state_sync.cli import output
from redis_state_sync.cli.overview import Overview, Reader, Standing
from redis_state_sync.cli.sparkline import sparkline
from redis_state_sync.manifest import Writer

_BAR = 24
# From here on there is room for bars.
_WIDE = 70
_MOST_PINS = 4
_MOST_COMPONENTS = 8
_MOST_READERS = 20
_FEWEST_READERS = 3
# Lines of both tables that are neither readers nor components.
_OF_TABLES = 6
_LEARNER = {
    True: Text("● a learner is at work", style="bold green"),
    False: Text("○ no sign of one", style="bold yellow"),
    None: Text("· a learner? a moment", style="dim"),
}
_MARKS = {
    Standing.CURRENT: ("●", "green"),
    Standing.BEHIND: ("●", "yellow"),
    Standing.STALE: ("●", "bold red"),
    Standing.SILENT: ("○", "dim"),
}


def view_of(
    found: Overview,
    where: str,
    server: str,
    alive: bool | None,
    *,
    rates: Sequence[float | None] | None = None,
    width: int | None = None,
    height: int | None = None,
) -> RenderableType:
    """All of it.

    Args:
        found: What there is.
        where: The store.
        server: What it runs.
        alive: Whether a learner is at work; None as long as that is not known.
        rates: Versions per second, the last one last; None: is not shown.
        width: Of the tables; None: as they need.
        height: Most lines; None: as many as it takes.
    """
    parts: list[RenderableType] = [_headline(found, alive)]
    if rates is not None:
        parts.append(_pace(rates))
    facts = _facts(found, where, server)
    parts += ["", output.rows(facts), ""]
    room = _MOST_READERS
    if height is not None:
        lines = len(parts) + len(facts) + min(len(found.pins), _MOST_PINS) + _OF_TABLES
        lines += min(len(_sizes(found)), _MOST_COMPONENTS + 1)
        room = min(room, max(_FEWEST_READERS, height - lines))
    parts.append(_readers(found, room, width))
    components = _components(found, width)
    if components is not None:
        parts += ["", components]
    return Group(*parts)


def _headline(found: Overview, alive: bool | None) -> Text:
    text = _LEARNER[alive].copy()
    newest = found.newest
    if newest is not None:
        text.append("   version ", style="default not bold")
        generation, _, number = str(newest.version).partition("-")
        text.append(f"{generation}-", style="default not bold")
        text.append(number, style="bold cyan")
        text.append(f"   {output.age(found.age_s(newest))} ago", style="default not bold")
    return text


def _pace(rates: Sequence[float | None]) -> Text:
    last = rates[-1] if rates else None
    text = Text("- versions/s" if last is None else f"{last:.1f} versions/s")
    text.append(f"  {sparkline(rates)}", style="cyan")
    return text


def _facts(found: Overview, where: str, server: str) -> list[tuple[str, str | Text]]:
    facts: list[tuple[str, str | Text]] = [
        ("server", f"{server} at {where}"),
        ("generation", "-" if found.generation is None else str(found.generation)),
    ]
    newest = found.newest
    if found.claimed_by is not None:
        facts.append(("taken over by", f"{found.claimed_by}, which has not published yet"))
    if newest is not None and newest.problem:
        facts.append(("problem", Text(newest.problem, style="bold red")))
    if newest is not None and newest.manifest is not None:
        seq_no = newest.manifest.weights_seq_no
        facts += [
            ("writer", _writer(newest.manifest.writer)),
            ("weights_seq_no", "-" if seq_no is None else str(seq_no)),
        ]
    expires = found.expires_in_s
    when = "never expire" if expires is None else f"expire in {output.age(expires)}"
    facts += [
        ("versions", f"{len(found.versions)}, {when} without a learner"),
        ("pins", _pins(found)),
    ]
    return facts


def _writer(writer: Writer) -> Text:
    return Text.assemble(f"{writer.host}, process {writer.pid}  ", (writer.id, "dim"))


def _pins(found: Overview) -> str:
    names = sorted(found.pins, key=lambda name: (found.pins[name], name), reverse=True)
    shown = [f"{name} = {found.pins[name]}" for name in names[:_MOST_PINS]]
    if len(names) > _MOST_PINS:
        shown.append(f"and {len(names) - _MOST_PINS} older ones")
    return "\n".join(shown) or "none"


def _sizes(found: Overview) -> dict[str, int]:
    newest = found.newest
    if newest is None or newest.manifest is None:
        return {}
    return {name: component.size for name, component in newest.manifest.components.items()}


def _components(found: Overview, width: int | None) -> RenderableType | None:
    sizes = _sizes(found)
    if not sizes:
        return None
    total = sum(sizes.values())
    bars = width is None or width >= _WIDE
    columns = ("component", "size", "") if bars else ("component", "size")
    table = output.table(*columns, right=("size",))
    table.width = width
    table.columns[0].ratio = None if width is None else 1
    largest = sorted(sizes, key=lambda name: (-sizes[name], name))
    for name in largest[:_MOST_COMPONENTS]:
        bar = "━" * round(_BAR * sizes[name] / max(total, 1))
        table.add_row(name, output.size(sizes[name]), *([Text(bar, style="blue")] if bars else []))
    others = largest[_MOST_COMPONENTS:]
    if others:
        rest = sum(sizes[name] for name in others)
        table.add_row(Text(f"and {len(others)} more", style="dim"), output.size(rest))
    if len(sizes) > 1:
        table.add_row(Text("all of it", style="dim"), Text(output.size(total), style="bold"))
    return table


def _readers(found: Overview, most: int, width: int | None) -> RenderableType:
    if not found.readers:
        return Text("no readers", style="dim")
    numbers = ("version", "behind", "fetched")
    table = output.table("", "reader", *numbers, right=numbers, wraps=1)
    table.columns[0].min_width = 1
    table.width = width
    table.columns[1].ratio = None if width is None else 1
    for reader in found.readers[:most]:
        table.add_row(*_row(found, reader), style="dim" if _is_silent(reader) else "")
    left_out = found.readers[most:]
    if not left_out:
        return table
    current = sum(reader.standing is Standing.CURRENT for reader in left_out)
    more = Text(f"and {len(left_out)} more, of which {current} are current", style="dim")
    return Group(table, more)


def _row(found: Overview, reader: Reader) -> tuple[Text, str, Text, Text, str]:
    mark, style = _MARKS[reader.standing]
    same = found.generation == reader.version.generation
    behind = "another learner's" if reader.lag is None else str(reader.lag or "current")
    return (
        Text(mark, style=style),
        reader.name,
        Text(str(reader.version.number if same else reader.version)),
        Text(behind, style=style),
        f"{output.age(reader.age_s)} ago",
    )


def _is_silent(reader: Reader) -> bool:
    return reader.standing is Standing.SILENT
