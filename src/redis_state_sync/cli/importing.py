"""`redis-state-sync import`: a version from a file."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated

import typer

from redis_state_sync.cli import output, state_file
from redis_state_sync.cli.export import File
from redis_state_sync.cli.options import TIMEOUT_S, AsJson, Namespace, Timeout, Url
from redis_state_sync.cli.rollback import TakeOver
from redis_state_sync.cli.session import history
from redis_state_sync.history import History
from redis_state_sync.publisher import StatePublisher
from redis_state_sync.rollback import check_no_learner, check_signed, outsider
from redis_state_sync.version import Version

# More than there ever are: what is there stays.
_HISTORY = 1_000_000
_TRANSFER_S = 600.0


def import_file(
    namespace: Namespace,
    file: File,
    name: Annotated[
        str | None, typer.Option("--pin", metavar="NAME", help="Pin the new version, too.")
    ] = None,
    take_over: TakeOver = False,
    url: Url = None,
    timeout: Timeout = TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Publishes what `export` wrote as a new version. The user needs a learner's rights.

    Beside a learner at work nothing is done, as with `rollback`. Take files only from those whom
    you trust with the weights: nothing in a file is run, but readers will act by it.
    """
    with history(namespace, url, timeout, as_json=as_json) as opened:
        state = state_file.read(file)
        top = opened.store.newest(opened.keys, timeout=timeout)
        if top:
            check_signed(opened, top[0])
        if not take_over:
            check_no_learner(opened)
        version = _publish(opened, state)
        if name is not None:
            opened.pin(name, version)
    if as_json:
        output.print_json({"namespace": namespace, "version": str(version), "pin": name})
    else:
        pinned = f", pinned as {name}" if name is not None else ""
        output.console().print(f"published {file} as {version}{pinned}")


def _publish(opened: History, state: state_file.StateFile) -> Version:
    publisher = StatePublisher(
        opened.store,
        opened.keys.namespace,
        writer_id=outsider("import"),
        history=_HISTORY,
        ttl_s=opened.ttl_s,
        connect_timeout_s=opened.timeout_s,
        transfer_timeout_s=_TRANSFER_S,
        node_cache_bytes=0,
        keyring=opened.records.keyring,
    )
    with closing(publisher):
        publication = publisher.publish(state.components, weights_seq_no=state.weights_seq_no)
        return publication.wait(_TRANSFER_S, fail_fast=True)
