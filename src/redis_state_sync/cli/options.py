"""Options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

from redis_state_sync.cli import completion

Namespace = Annotated[
    str,
    typer.Argument(metavar="NS", help="The namespace.", autocompletion=completion.namespaces),
]
Which = Annotated[
    str,
    typer.Argument(
        metavar="VERSION",
        help="A version, a pin's name, or 'newest'.",
        autocompletion=completion.which,
    ),
]
Url = Annotated[
    str | None,
    typer.Option(
        "--url", metavar="URL", help="The store, without a password. Default: REDIS_STATE_SYNC_URL."
    ),
]
Timeout = Annotated[
    float, typer.Option("--timeout", min=0.1, help="Seconds for each question to the store.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]

TIMEOUT_S = 5.0
