"""`redis-state-sync status`: one namespace at a glance."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from redis_state_sync.cli import output
from redis_state_sync.cli.options import TIMEOUT_S, AsJson, Namespace, Timeout, Url
from redis_state_sync.cli.overview import Overview, look_at
from redis_state_sync.cli.session import history
from redis_state_sync.rollback import learner_at_work

# Two of a learner's heartbeats.
_WATCH_S = 1.0
_MOST_READERS = 20


def status(
    namespace: Namespace, url: Url = None, timeout: Timeout = TIMEOUT_S, as_json: AsJson = False
) -> None:
    """Shows who writes a namespace, what is newest there, and who reads it and is how far behind.

    Takes a second: so long it looks whether a learner refreshes what is stored.
    """
    with history(namespace, url, timeout, as_json=as_json) as opened:
        found = look_at(opened)
        sign = learner_at_work(opened, watch_s=_WATCH_S)
        server = opened.store.server_facts(timeout=timeout)
        where = opened.store.describe()
    if as_json:
        facts = {"store": where, "server": server, "learner_at_work": sign is not None}
        output.print_json({**facts, **found.as_json()})
    else:
        output.console().print(view_of(found, where, server, sign is not None))


def view_of(found: Overview, where: str, server: str, alive: bool | None) -> RenderableType:
    """All of it, for people. `alive` is None as long as that is not known."""
    newest = found.newest
    manifest = newest.manifest if newest else None
    learner = {
        True: Text("at work", style="green"),
        False: Text("no sign of one", style="yellow"),
        None: Text("?"),
    }[alive]
    facts: list[tuple[str, str | Text]] = [
        ("namespace", found.namespace),
        ("server", f"{server} at {where}"),
        ("learner", learner),
        ("generation", "-" if found.generation is None else str(found.generation)),
    ]
    if found.claimed_by is not None:
        facts.append(("taken over by", f"{found.claimed_by}, which has not published yet"))
    if newest is not None:
        facts += [
            ("version", str(newest.version)),
            ("published", f"{output.age(found.age_s(newest))} ago"),
        ]
    if newest is not None and newest.problem:
        facts.append(("problem", Text(newest.problem, style="red")))
    if manifest is not None:
        seq_no = manifest.weights_seq_no
        facts += [
            ("writer", str(manifest.writer)),
            ("weights_seq_no", "-" if seq_no is None else str(seq_no)),
            ("size", output.size(manifest.size)),
        ]
    facts += [
        ("versions", str(len(found.versions))),
        ("pins", ", ".join(f"{n} = {v}" for n, v in sorted(found.pins.items())) or "none"),
        (
            "expires",
            "never" if found.expires_in_s is None else f"in {output.age(found.expires_in_s)}",
        ),
    ]
    parts: list[RenderableType] = [output.rows(facts)]
    if manifest is not None:
        components = output.table("component", "size", right=("size",))
        for name, component in manifest.components.items():
            components.add_row(name, output.size(component.size))
        parts += ["", components]
    parts += ["", _readers(found) if found.readers else "no readers"]
    return Group(*parts)


def _readers(found: Overview) -> RenderableType:
    table = output.table("reader", "version", "behind", "fetched", right=("behind", "fetched"))
    for reader in found.readers[:_MOST_READERS]:
        table.add_row(
            reader.name,
            str(reader.version),
            "another learner's" if reader.lag is None else str(reader.lag),
            f"{output.age(reader.age_s)} ago",
        )
    more = len(found.readers) - _MOST_READERS
    return Group(table, f"and {more} more") if more > 0 else table
