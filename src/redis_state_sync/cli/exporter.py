"""`redis-state-sync exporter`: what `status` shows of all namespaces, for Prometheus."""

from __future__ import annotations

import json
import signal
import threading
from contextlib import closing
from typing import Annotated

import typer

from redis_state_sync.cli import completion
from redis_state_sync.cli.looker import Looker
from redis_state_sync.cli.options import TIMEOUT_S, AsJson, Timeout, Url
from redis_state_sync.cli.session import opened
from redis_state_sync.errors import SettingsError
from redis_state_sync.keys import check_namespace
from redis_state_sync.prometheus import require_prometheus_client


def exporter(
    namespaces: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NS",
            help="Look at these namespaces alone. Default: all.",
            autocompletion=completion.namespaces,
        ),
    ] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port to listen on; 0: any that is free.")
    ] = 9108,
    address: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    interval: Annotated[float, typer.Option(min=1.0, help="Seconds between looks.")] = 5.0,
    forget_readers: Annotated[
        float, typer.Option(min=1.0, help="Seconds behind after which a reader counts as gone.")
    ] = 300.0,
    url: Url = None,
    timeout: Timeout = TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Serves what there is in each namespace as metrics for Prometheus, until it is terminated.

    A store that is down is told of, and waited for. It asks for no password and shows none: let
    nobody reach it who may not know the names of your namespaces. With --json it prints one line:
    where it serves.
    """
    with opened(url, timeout, as_json=as_json) as store:
        require_prometheus_client()
        from prometheus_client import CollectorRegistry, start_http_server

        from redis_state_sync.cli.exposition import StoreCollector

        for name in namespaces or ():
            check_namespace(name)
        stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        registry = CollectorRegistry()
        looker = Looker(
            store,
            namespaces or (),
            interval_s=interval,
            timeout_s=timeout,
            forget_readers_s=forget_readers,
        )
        with closing(looker):
            registry.register(StoreCollector(lambda: looker.latest))
            try:
                server, thread = start_http_server(port, address, registry)
            except OSError as error:
                raise SettingsError(
                    f"can not listen on {address}:{port}: {error.strerror or error}"
                ) from error
            host = f"[{address}]" if ":" in address else address
            where = f"http://{host}:{server.server_port}/metrics"
            if as_json:
                print(json.dumps({"store": store.describe(), "url": where}), flush=True)
            else:
                typer.echo(f"serving metrics of {store.describe()} at {where}", err=True)
            stop.wait()
            server.shutdown()
            server.server_close()
            thread.join()
