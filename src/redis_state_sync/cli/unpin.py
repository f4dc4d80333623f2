"""`redis-state-sync unpin`: takes a version's name away."""

from __future__ import annotations

from redis_state_sync.cli import output
from redis_state_sync.cli.options import TIMEOUT_S, AsJson, Namespace, Timeout, Url
from redis_state_sync.cli.pin import Name
from redis_state_sync.cli.session import history


def unpin(
    namespace: Namespace,
    name: Name,
    url: Url = None,
    timeout: Timeout = TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Removes a pin. A version without one is dropped by its learner, or expires within a day."""
    with history(namespace, url, timeout, as_json=as_json) as opened:
        version = opened.unpin(name)
    if as_json:
        output.print_json({"namespace": namespace, "pin": name, "version": str(version)})
    else:
        output.console().print(f"unpinned {name}, which was {version}")
