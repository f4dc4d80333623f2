"""`redis-state-sync versions`: the states of one namespace."""

from __future__ import annotations

from rich.table import Table

from redis_state_sync.cli import output
from redis_state_sync.cli.options import TIMEOUT_S, AsJson, Namespace, Timeout, Url
from redis_state_sync.cli.overview import Overview, look_at, version_as_json
from redis_state_sync.cli.session import history


def versions(
    namespace: Namespace, url: Url = None, timeout: Timeout = TIMEOUT_S, as_json: AsJson = False
) -> None:
    """Lists the versions that a namespace holds, newest first, with their pins."""
    with history(namespace, url, timeout, as_json=as_json) as opened:
        found = look_at(opened)
    if as_json:
        shown = [version_as_json(found, stored) for stored in found.versions]
        output.print_json({"namespace": namespace, "versions": shown})
    else:
        spare = ("writer", "weights_seq_no", "size")
        output.print_table(table_of(found), output.console(), spare=spare)


def table_of(found: Overview) -> Table:
    """The versions as a table."""
    numbers = ("age", "size", "weights_seq_no")
    table = output.table("version", "pins", *numbers, "writer", right=numbers)
    for stored in found.versions:
        manifest = stored.manifest
        if manifest is None:
            table.add_row(
                str(stored.version), ", ".join(stored.pins), "-", "-", "-", str(stored.problem)
            )
            continue
        seq_no = manifest.weights_seq_no
        table.add_row(
            str(stored.version),
            ", ".join(stored.pins),
            output.age(found.age_s(stored)),
            output.size(manifest.size),
            "-" if seq_no is None else str(seq_no),
            f"{manifest.writer.host}/{manifest.writer.pid}",
        )
    return table
