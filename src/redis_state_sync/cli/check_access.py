"""What `doctor` finds wrong with who may do what: pure functions of what the server said."""

from __future__ import annotations

from collections.abc import Iterator

from redis_state_sync.cli.facts import Facts
from redis_state_sync.cli.findings import Finding, Level


def encryption(facts: Facts) -> Iterator[Finding]:
    """What is sent can not be read on its way, and the server is the one that it says it is."""
    if facts.endpoint.options.get("ssl_cert_reqs") in ("none", "optional"):
        yield Finding(
            Level.ERROR,
            "tls",
            "the server's certificate is not verified: anybody on the way can pose as the server",
            "leave ssl_cert_reqs out of the URL, and name the CA by ssl_ca_certs",
        )
    elif facts.endpoint.options.get("ssl_check_hostname", "true").lower() == "false":
        yield Finding(
            Level.WARNING,
            "tls",
            "the name in the server's certificate is not checked: who has any certificate of this "
            "CA can pose as the server",
            "leave ssl_check_hostname out of the URL",
        )
    if not facts.endpoint.tls and not facts.is_local:
        secret = "the password and " if facts.with_password else ""
        yield Finding(
            Level.WARNING,
            "encryption",
            f"the connection is not encrypted: {secret}all states can be read on the way",
            "use rediss://, or keep the port on a private network",
        )


def access(facts: Facts) -> Iterator[Finding]:
    """Not everybody gets in."""
    anybody = not facts.with_password and facts.user in (None, "default")
    reached = not facts.is_local or (facts.config or {}).get("protected-mode") == "no"
    if reached and (anybody or facts.open_to_all):
        yield Finding(
            Level.ERROR,
            "access",
            "the server asks for no password: whoever reaches its port can replace the weights"
            if anybody
            else "user default needs no password and may do everything: whoever reaches the port "
            "can replace the weights, whatever rights other users have",
            "give it users, as in deploy/redis/users.acl; there, user default is off",
        )


def rights(facts: Facts) -> Iterator[Finding]:
    """The user may do what its role takes."""
    if facts.denied:
        yield Finding(
            Level.ERROR,
            "rights",
            f"user {facts.user or '?'} may not run {', '.join(facts.denied)}, which a "
            f"{facts.role} needs",
            f"grant them as deploy/redis/users.acl does for the user {facts.role}",
        )


def commands(facts: Facts) -> Iterator[Finding]:
    """The server has the commands that the role takes."""
    if facts.unknown:
        yield Finding(
            Level.ERROR,
            "commands",
            f"the server has no {', '.join(facts.unknown)}, which a {facts.role} needs: renamed, "
            "disabled, or left out by a proxy",
            "take rename-command out of its configuration: rights are for users (deploy/redis/"
            "users.acl); a managed service or proxy must offer these commands",
        )


def not_looked_at(facts: Facts) -> Iterator[Finding]:
    """What could not be looked at is said."""
    closed = [
        what
        for what, is_closed in (
            ("INFO (version, role, memory, persistence)", not facts.info),
            ("CONFIG GET (limits, timeout, protected mode)", facts.config is None),
            ("SCAN (sizes of states, pins)", not facts.counted),
        )
        if is_closed
    ]
    if closed:
        yield Finding(
            Level.NOTE,
            "not looked at",
            f"this user may not ask for {'; '.join(closed)}",
            "once, run doctor as a user who may do everything; or name a namespace",
        )
