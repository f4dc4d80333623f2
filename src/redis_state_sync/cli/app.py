"""All commands."""

from __future__ import annotations

from typing import Annotated

import typer

from redis_state_sync import __version__
from redis_state_sync.cli.clear import clear
from redis_state_sync.cli.demo import SETTINGS, demo
from redis_state_sync.cli.diff import diff
from redis_state_sync.cli.doctor import doctor
from redis_state_sync.cli.export import export
from redis_state_sync.cli.exporter import exporter
from redis_state_sync.cli.importing import import_file
from redis_state_sync.cli.listing import list_namespaces
from redis_state_sync.cli.pin import pin
from redis_state_sync.cli.rollback import rollback
from redis_state_sync.cli.status import status
from redis_state_sync.cli.unpin import unpin
from redis_state_sync.cli.versions import versions
from redis_state_sync.cli.watch import watch

# No pretty exceptions: they print local variables, and one may hold a password.
app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"redis-state-sync {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Looks at the states that learners publish through Redis or Valkey, and keeps old ones.

    The server is REDIS_STATE_SYNC_URL's, or --url's; a password comes from
    REDIS_STATE_SYNC_PASSWORD_FILE or REDIS_STATE_SYNC_PASSWORD. Exit status: docs/cli.md.
    """


app.command("list")(list_namespaces)
app.command("status")(status)
app.command("versions")(versions)
app.command("pin")(pin)
app.command("unpin")(unpin)
app.command("rollback")(rollback)
app.command("doctor")(doctor)
app.command("diff")(diff)
app.command("export")(export)
app.command("import")(import_file)
app.command("clear")(clear)
app.command("watch")(watch)
app.command("demo", context_settings=SETTINGS)(demo)
app.command("exporter")(exporter)
