"""All that `doctor` looks at, each check a pure function of what the server said."""

from __future__ import annotations

from redis_state_sync.cli import check_access, check_clients, check_server
from redis_state_sync.cli.facts import Facts
from redis_state_sync.cli.findings import Check, Finding, Level

CHECKS: tuple[Check, ...] = (
    check_server.version,
    check_server.role_of_server,
    check_server.cluster,
    check_server.eviction,
    check_server.memory,
    check_server.machine,
    check_server.persistence,
    check_server.latency,
    check_server.clock,
    check_clients.limits,
    check_clients.replicas,
    check_clients.clients,
    check_clients.refused,
    check_access.encryption,
    check_access.access,
    check_access.rights,
    check_access.commands,
    check_access.not_looked_at,
)


def examine(facts: Facts) -> list[Finding]:
    """All findings, the worst first."""
    found = [finding for check in CHECKS for finding in check(facts)]
    return sorted(found, key=lambda finding: list(Level).index(finding.level))
