"""`redis-state-sync list`: the namespaces of a server."""

from __future__ import annotations

from redis_state_sync.cli import output
from redis_state_sync.cli.options import TIMEOUT_S, AsJson, Timeout, Url
from redis_state_sync.cli.overview import Overview, look_at
from redis_state_sync.cli.session import opened
from redis_state_sync.errors import UnknownVersionError
from redis_state_sync.history import History


def list_namespaces(url: Url = None, timeout: Timeout = TIMEOUT_S, as_json: AsJson = False) -> None:
    """Lists the namespaces that hold something, with what is newest in each."""
    found: list[Overview] = []
    with opened(url, timeout, as_json=as_json) as store:
        for name in store.namespaces(timeout=timeout):
            try:
                found.append(look_at(History(store, name, timeout_s=timeout)))
            except UnknownVersionError:
                pass  # It expired while we looked.
        where = store.describe()
    if as_json:
        output.print_json({"store": where, "namespaces": [each.as_json() for each in found]})
        return
    if not found:
        output.console().print(f"no namespace at {where}")
        return
    numbers = ("age", "size", "versions", "pins", "readers")
    table = output.table("namespace", "newest", *numbers, "writer", right=numbers)
    for each in found:
        newest = each.newest
        manifest = newest.manifest if newest else None
        table.add_row(
            each.namespace,
            str(newest.version) if newest else "-",
            output.age(each.age_s(newest) if newest else None),
            output.size(manifest.size if manifest else None),
            str(len(each.versions)),
            str(len(each.pins)),
            str(len(each.readers)),
            f"{manifest.writer.host}/{manifest.writer.pid}" if manifest else "-",
        )
    spare = ("writer", "pins", "readers", "versions", "size")
    output.print_table(table, output.console(), spare=spare)
