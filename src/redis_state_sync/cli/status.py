"""`redis-state-sync status`: one namespace at a glance."""

from __future__ import annotations

from redis_state_sync.cli import output
from redis_state_sync.cli.options import TIMEOUT_S, AsJson, Namespace, Timeout, Url
from redis_state_sync.cli.overview import look_at
from redis_state_sync.cli.session import history
from redis_state_sync.cli.view import view_of
from redis_state_sync.rollback import learner_at_work

# Two of a learner's heartbeats.
_WATCH_S = 1.0


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
        console = output.console()
        width = output.readable_width(console)
        console.print(view_of(found, where, server, sign is not None, width=width))
