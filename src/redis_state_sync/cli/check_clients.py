"""What `doctor` finds wrong with how a server treats its clients: pure functions."""

from __future__ import annotations

from collections.abc import Iterator

from redis_state_sync.cli.facts import Facts
from redis_state_sync.cli.findings import Finding, Level
from redis_state_sync.cli.output import size

_MB = 1 << 20
# A reader asks for so much at once, and a learner sends pieces of so much.
_REPLY_BYTES = 64 * _MB
_PIECE_BYTES = 4 * _MB


def limits(facts: Facts) -> Iterator[Finding]:
    """Pieces of a state fit into what the server takes and sends."""
    for kind, hard, soft, _ in _buffer_limits(facts):
        tight = [n for n in (hard, soft) if 0 < n < _REPLY_BYTES]
        if kind == "normal" and tight:
            yield Finding(
                Level.ERROR,
                "output-buffer",
                f"client-output-buffer-limit normal is {hard} {soft}: the server hangs "
                f"up on readers, which ask for up to {size(_REPLY_BYTES)} at once",
                "set client-output-buffer-limit normal 256mb 128mb 60, or 0 0 0",
            )
    for name in ("proto-max-bulk-len", "client-query-buffer-limit"):
        value = facts.parameter(name)
        if value is not None and 0 < value < _PIECE_BYTES + _MB:
            yield Finding(
                Level.ERROR,
                name,
                f"{name} is {size(value)}: the server hangs up on learners, which send pieces of "
                f"{size(_PIECE_BYTES)}",
                f"set {name} to 512mb",
            )
    clients = facts.parameter("maxmemory-clients")
    if clients is not None and 0 < clients < 2 * _REPLY_BYTES:
        yield Finding(
            Level.ERROR,
            "maxmemory-clients",
            f"maxmemory-clients is {size(clients)}: the server hangs up on those who fetch",
            "set maxmemory-clients 0, or much more than all readers fetch at once",
        )


def replicas(facts: Facts) -> Iterator[Finding]:
    """A replica is not hung up on while a state is sent to it."""
    if not facts.number("connected_slaves") or not facts.largest_bytes:
        return
    for kind, hard, soft, seconds in _buffer_limits(facts):
        tight = [n for n in (hard, soft) if 0 < n < facts.largest_bytes]
        if kind in ("slave", "replica") and tight:
            yield Finding(
                Level.WARNING,
                "replica-buffer",
                f"client-output-buffer-limit {kind} is {size(hard)}, or {size(soft)} for {seconds} "
                f"s, and a state has {size(facts.largest_bytes)}: a replica that is not as fast as "
                "the learner is hung up on, and begins anew with everything, again and again",
                f"set client-output-buffer-limit {kind} to several states",
            )


def clients(facts: Facts) -> Iterator[Finding]:
    """Connections are kept, and there are enough."""
    idle = facts.parameter("timeout")
    if idle:
        yield Finding(
            Level.WARNING,
            "timeout",
            f"timeout is {idle}: a reader that samples for longer than {idle} s has to connect "
            "anew, which costs it a poll",
            "set timeout 0, and tcp-keepalive 60 to find dead connections",
        )
    if facts.parameter("tcp-keepalive") == 0:
        yield Finding(
            Level.WARNING,
            "tcp-keepalive",
            "tcp-keepalive is 0: connections of machines that died, or that a firewall forgot, "
            "are kept for ever, each with its memory",
            "set tcp-keepalive 60",
        )
    most, now = facts.number("maxclients"), facts.number("connected_clients")
    if most and now > 0.8 * most:
        yield Finding(
            Level.WARNING,
            "maxclients",
            f"{now} of at most {most} clients are connected; every EnvRunner is one",
            "raise maxclients, and the limit of open files of the server",
        )


def refused(facts: Facts) -> Iterator[Finding]:
    """Nobody was turned away, or hung up on, since the server was started."""
    turned_away = facts.number("rejected_connections")
    if turned_away:
        yield Finding(
            Level.WARNING,
            "refused",
            f"{turned_away} connections were refused since the server was started: more than "
            "maxclients wanted to connect",
            "raise maxclients, and the limit of open files of the server",
        )
    dropped = facts.number("client_output_buffer_limit_disconnections")
    if dropped:
        yield Finding(
            Level.WARNING,
            "hung-up",
            f"the server hung up on {dropped} clients since it was started, as more was to be sent "
            "to them than its limits allow",
            "raise client-output-buffer-limit; see its log for whom it was",
        )


def _buffer_limits(facts: Facts) -> list[tuple[str, int, int, int]]:
    """Kind of client, hard limit, soft limit, seconds; 0 is none."""
    words = (facts.config or {}).get("client-output-buffer-limit", "").split()
    fours = zip(*(words[i::4] for i in range(4)), strict=False)
    return [
        (kind, int(hard), int(soft), int(seconds))
        for kind, hard, soft, seconds in fours
        if all(number.isdigit() for number in (hard, soft, seconds))
    ]
