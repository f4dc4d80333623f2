"""`redis-state-sync pin`: gives a version a name, so that it stays."""

from __future__ import annotations

from typing import Annotated

import typer

from redis_state_sync.cli import completion, output
from redis_state_sync.cli.options import TIMEOUT_S, AsJson, Namespace, Timeout, Url, Which
from redis_state_sync.cli.session import history

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="The pin's name.", autocompletion=completion.pins)
]


def pin(
    namespace: Namespace,
    name: Name,
    which: Which = "newest",
    url: Url = None,
    timeout: Timeout = TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Pins a version under a name: it is neither dropped nor does it expire, until it is unpinned.

    A name that is taken is given anew.
    """
    with history(namespace, url, timeout, as_json=as_json) as opened:
        version = opened.pin(name, which)
    if as_json:
        output.print_json({"namespace": namespace, "pin": name, "version": str(version)})
    else:
        output.console().print(f"pinned {version} as {name}")
