"""`redis-state-sync doctor`: what is wrong with a server, and what to do about it."""

from __future__ import annotations

from dataclasses import asdict
from enum import Enum
from typing import Annotated

import typer
from rich.text import Text

from redis_state_sync.backends import resolve_endpoint
from redis_state_sync.cli import completion, output
from redis_state_sync.cli.checks import CHECKS, examine
from redis_state_sync.cli.exit_codes import ExitCode
from redis_state_sync.cli.facts import Facts, gather
from redis_state_sync.cli.findings import Finding, Level
from redis_state_sync.cli.options import TIMEOUT_S, AsJson, Timeout, Url
from redis_state_sync.cli.session import opened, settings_of
from redis_state_sync.credentials import EnvironmentCredentials
from redis_state_sync.errors import SettingsError
from redis_state_sync.redis_store import RedisStore

_STYLES = {Level.ERROR: "bold red", Level.WARNING: "yellow", Level.NOTE: "dim"}


class Role(str, Enum):
    """The users of deploy/redis/users.acl."""

    RUNNER = "runner"
    LEARNER = "learner"
    OPERATOR = "operator"


def doctor(
    namespace: Annotated[
        str | None,
        typer.Argument(
            metavar="[NS]",
            help="Look at this namespace alone, and try rights there.",
            autocompletion=completion.namespaces,
        ),
    ] = None,
    role: Annotated[Role, typer.Option(help="Whose rights the user must have.")] = Role.RUNNER,
    url: Url = None,
    timeout: Timeout = TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Connects to the server, looks at what goes wrong with such servers, and names the remedies.

    Changes nothing. Ends with status 1 if an error was found; warnings and notes are none.
    """
    with opened(url, timeout, as_json=as_json) as store:
        if not isinstance(store, RedisStore):
            raise SettingsError(f"{store.describe()} is no server: there is nothing to look at")
        settings = settings_of(url, timeout)
        endpoint = resolve_endpoint(settings)
        credentials = EnvironmentCredentials(endpoint, settings.password_env)
        facts = gather(
            store,
            endpoint,
            with_password=credentials.available(),
            role=role.value,
            namespace=namespace,
            timeout=timeout,
        )
        where, server = store.describe(), store.server_facts(timeout=timeout)
    findings = examine(facts)
    if as_json:
        shown = [{**asdict(finding), "level": finding.level.value} for finding in findings]
        output.print_json({"store": where, "server": server, "findings": shown})
    else:
        _print(facts, f"{server} at {where}", findings)
    if any(finding.level is Level.ERROR for finding in findings):
        raise typer.Exit(ExitCode.PROBLEM)


def _print(facts: Facts, server: str, findings: list[Finding]) -> None:
    console = output.console()
    median = facts.latencies_s[len(facts.latencies_s) // 2]
    console.print(f"{server}, user {facts.user or '?'}, a PING takes {median * 1000:.2f} ms")
    for finding in findings:
        console.print(
            Text.assemble(
                "\n",
                (f"{finding.level.value}: {finding.name}", _STYLES[finding.level]),
                f"\n  {finding.text}\n  -> {finding.remedy}",
            )
        )
    counts = [
        f"{count} {level.value}{'' if count == 1 else 's'}"
        for level in Level
        if (count := sum(finding.level is level for finding in findings))
    ]
    console.print(f"\n{len(CHECKS)} checks: {', '.join(counts) or 'nothing found'}")
