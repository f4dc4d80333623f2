"""`redis-state-sync rollback`: makes an old state the newest version."""

from __future__ import annotations

from typing import Annotated

import typer

from redis_state_sync.cli import output
from redis_state_sync.cli.options import TIMEOUT_S, AsJson, Namespace, Timeout, Url, Which
from redis_state_sync.cli.session import history
from redis_state_sync.rollback import roll_back

TakeOver = Annotated[
    bool,
    typer.Option(
        "--take-over",
        help="Do so although a learner is at work. It is refused from then on, and stops.",
    ),
]


def rollback(
    namespace: Namespace,
    which: Which,
    take_over: TakeOver = False,
    url: Url = None,
    timeout: Timeout = TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Publishes an old state as a new version, which every follower takes.

    The user needs a learner's rights. It takes two seconds: so long it looks whether a learner is
    at work. If one is, nothing is done. EnvRunners of RLlib take states of their own learner only.
    """
    with history(namespace, url, timeout, as_json=as_json) as opened:
        old, _ = opened.find(which)
        new = roll_back(opened, old.version, take_over=take_over)
    if as_json:
        output.print_json(
            {"namespace": namespace, "state_of": str(old.version), "version": str(new)}
        )
    else:
        output.console().print(f"published the state of {old.version} as {new}")
