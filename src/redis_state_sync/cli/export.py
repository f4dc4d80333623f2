"""`redis-state-sync export`: a version into a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from redis_state_sync.cli import output, state_file
from redis_state_sync.cli.options import TIMEOUT_S, AsJson, Namespace, Timeout, Url, Which
from redis_state_sync.cli.session import history

File = Annotated[Path, typer.Argument(metavar="FILE", help="The file, of safetensors.")]


def export(
    namespace: Namespace,
    which: Which,
    file: File,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file.")] = False,
    url: Url = None,
    timeout: Timeout = TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Writes a version to a file of safetensors, from which `import` makes the same state again.

    Arrays are named as in the state: rl_module/p0/... A signature is checked now, and not in the
    file: protect it as you would the weights.
    """
    with history(namespace, url, timeout, as_json=as_json) as opened:
        state_file.require_safetensors()
        snapshot = opened.fetch(which)
        state_file.write(file, snapshot, namespace, overwrite=overwrite)
        count = file.stat().st_size
    if as_json:
        found = {"namespace": namespace, "version": str(snapshot.version)}
        output.print_json({**found, "file": str(file), "size": count})
    else:
        output.console().print(f"wrote {snapshot.version} to {file}, {output.size(count)}")
