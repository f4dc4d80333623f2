"""`redis-state-sync clear`: removes a namespace."""

from __future__ import annotations

from typing import Annotated

import typer

from redis_state_sync.cli import output
from redis_state_sync.cli.exit_codes import ExitCode
from redis_state_sync.cli.options import TIMEOUT_S, AsJson, Namespace, Timeout, Url
from redis_state_sync.cli.overview import look_at
from redis_state_sync.cli.session import history
from redis_state_sync.errors import LearnerAliveError, SettingsError
from redis_state_sync.rollback import learner_at_work


def clear(
    namespace: Namespace,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    url: Url = None,
    timeout: Timeout = TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Removes all versions of a namespace, the pinned ones as well. Asks first.

    Touches no other key of the server. Beside a learner at work nothing is done: it would publish
    again at once.
    """
    with history(namespace, url, timeout, as_json=as_json) as opened:
        if as_json and not yes:
            raise SettingsError("with --json nobody can be asked: add --yes")
        found = look_at(opened)
        sign = learner_at_work(opened)
        if sign is not None:
            raise LearnerAliveError(
                f"a learner is at work in namespace {namespace!r} at {opened.store.describe()}: "
                f"{sign}. It would publish again at once: stop it first"
            )
        pinned = sum(bool(stored.pins) for stored in found.versions)
        pins = f", of which {pinned} are pinned," if pinned else ""
        question = (
            f"Remove all {len(found.versions)} versions{pins} of {namespace} at "
            f"{opened.store.describe()}? There is no way back"
        )
        if not yes and not typer.confirm(question):
            output.console().print("nothing was removed")
            raise typer.Exit(ExitCode.PROBLEM)
        count = opened.store.clear(opened.keys, timeout=timeout)
    if as_json:
        output.print_json({"namespace": namespace, "removed_keys": count})
    else:
        output.console().print(f"removed {namespace}: {count} keys")
