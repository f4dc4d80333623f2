"""What `doctor` finds wrong, and what to do about it: pure functions of what the server said."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

from redis_state_sync.cli.facts import Facts
from redis_state_sync.cli.output import size

_MB = 1 << 20
# A reader asks for so much at once, and a learner sends pieces of so much.
_REPLY_BYTES = 64 * _MB
_PIECE_BYTES = 4 * _MB
_OLDEST = (5, 0)
# Of a `sample()`, by default.
_POLL_TIMEOUT_S = 0.05
_SLOW_S = 0.005
_CLOCK_S = 30.0


class Level(str, Enum):
    """How bad it is."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be.

    Args:
        level: How bad.
        name: Of the check.
        text: What there is, and what it leads to.
        remedy: What to do.
    """

    level: Level
    name: str
    text: str
    remedy: str


Check = Callable[[Facts], Iterator[Finding]]


def examine(facts: Facts) -> list[Finding]:
    """All findings, the worst first."""
    found = [finding for check in CHECKS for finding in check(facts)]
    return sorted(found, key=lambda finding: list(Level).index(finding.level))


def version(facts: Facts) -> Iterator[Finding]:
    """The server is one that this package works with."""
    text = facts.info.get("redis_version", "")
    parts = tuple(int(part) for part in text.split(".")[:2] if part.isdigit())
    if parts and parts < _OLDEST:
        yield Finding(
            Level.ERROR,
            "version",
            f"the server is Redis {text}: it lacks streams",
            "use Redis 5.0 or later, or Valkey",
        )


def role_of_server(facts: Facts) -> Iterator[Finding]:
    """It takes writes."""
    if facts.info.get("role") == "slave":
        yield Finding(
            Level.ERROR,
            "replica",
            "the server is a replica: it refuses every publish and every reader's note",
            "name the primary in the URL, or ask the sentinels: redis+sentinel://",
        )
    wanted = facts.parameter("min-replicas-to-write") or 0
    good = facts.number("min_slaves_good_slaves", facts.number("connected_slaves"))
    if wanted > good and facts.info.get("role") != "slave":
        yield Finding(
            Level.ERROR,
            "min-replicas",
            f"min-replicas-to-write is {wanted}, and {good} replicas follow: it refuses writes",
            "start the replicas, or set min-replicas-to-write 0",
        )


def cluster(facts: Facts) -> Iterator[Finding]:
    """The URL says that it is a cluster, if it is one."""
    if facts.info.get("cluster_enabled") == "1" and not facts.endpoint.cluster:
        yield Finding(
            Level.ERROR,
            "cluster",
            "the server is a node of a cluster, and has only some of the namespaces",
            "use redis+cluster:// (with TLS rediss+cluster://) in the URL",
        )


def eviction(facts: Facts) -> Iterator[Finding]:
    """Nothing is taken away to make room."""
    policy = facts.info.get("maxmemory_policy", "noeviction")
    if policy == "noeviction":
        return
    limited = facts.number("maxmemory") > 0
    yield Finding(
        Level.ERROR if limited else Level.WARNING,
        "eviction",
        f"maxmemory-policy is {policy}: {'' if limited else 'once there is a maxmemory, '}blobs "
        "of versions that are announced or pinned are taken away when memory runs out",
        "set maxmemory-policy noeviction: a learner that finds the server full drops old versions",
    )


def memory(facts: Facts) -> Iterator[Finding]:
    """What is stored has room, with one version more, and the server a limit."""
    if "maxmemory" not in facts.info:
        return  # `not_looked_at` says so.
    limit, used = facts.number("maxmemory"), facts.number("used_memory")
    if limit == 0:
        yield Finding(
            Level.WARNING,
            "maxmemory",
            "maxmemory is not set: when the machine's memory runs out the kernel kills the server",
            "set maxmemory to half of the memory that the server may have",
        )
        return
    if facts.wanted_bytes > limit:
        yield Finding(
            Level.ERROR,
            "memory",
            f"the namespaces need {size(facts.wanted_bytes)} (each its versions, one more while "
            f"it is sent, and its pins), and maxmemory is {size(limit)}",
            "raise maxmemory, lower history, or unpin versions",
        )
    elif used > 0.9 * limit:
        yield Finding(
            Level.WARNING,
            "memory",
            f"{size(used)} of {size(limit)} are used: a learner may have to drop old versions",
            "raise maxmemory, lower history, or unpin versions",
        )


def persistence(facts: Facts) -> Iterator[Finding]:
    """What is pinned outlives a restart, and what is to be written can be."""
    kept = facts.info.get("aof_enabled") == "1" or (facts.config or {}).get("save", "?") != ""
    if facts.pins and not kept:
        yield Finding(
            Level.WARNING,
            "persistence",
            f"the server keeps nothing on disk, and holds pins ({facts.pins}): a restart loses "
            "them. (What a living learner published comes back by itself.)",
            "set appendonly yes",
        )
    failed = [
        name
        for name in ("rdb_last_bgsave_status", "aof_last_write_status", "aof_last_bgrewrite_status")
        if facts.info.get(name, "ok") != "ok"
    ]
    if failed:
        yield Finding(
            Level.ERROR,
            "disk",
            f"the server could not write to its disk ({', '.join(failed)}): it may refuse all "
            "writes (MISCONF)",
            "see its log; make room in its folder, or correct the folder's rights",
        )
    if facts.info.get("aof_enabled") == "1" and (facts.config or {}).get("appendfsync") == "always":
        yield Finding(
            Level.WARNING,
            "appendfsync",
            "appendfsync is always: every publish, and every poll behind it, waits for the disk",
            "set appendfsync everysec: what a crash loses, the next version heals",
        )


def limits(facts: Facts) -> Iterator[Finding]:
    """Pieces of a state fit into what the server takes and sends."""
    text = (facts.config or {}).get("client-output-buffer-limit", "")
    words = text.split()
    for kind, hard, soft, _ in zip(*(words[i::4] for i in range(4)), strict=False):
        tight = [n for n in (hard, soft) if n.isdigit() and 0 < int(n) < _REPLY_BYTES]
        if kind == "normal" and tight:
            yield Finding(
                Level.ERROR,
                "output-buffer",
                f"client-output-buffer-limit normal is {' '.join((hard, soft))}: the server hangs "
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
    most, now = facts.number("maxclients"), facts.number("connected_clients")
    if most and now > 0.8 * most:
        yield Finding(
            Level.WARNING,
            "maxclients",
            f"{now} of at most {most} clients are connected; every EnvRunner is one",
            "raise maxclients, and the limit of open files of the server",
        )


def latency(facts: Facts) -> Iterator[Finding]:
    """A poll is answered long before it is given up."""
    if not facts.latencies_s:
        return
    median, worst = facts.latencies_s[len(facts.latencies_s) // 2], facts.latencies_s[-1]
    if median > _SLOW_S:
        yield Finding(
            Level.ERROR if median > _POLL_TIMEOUT_S else Level.WARNING,
            "latency",
            f"a PING takes {median * 1000:.1f} ms (the slowest {worst * 1000:.1f} ms), and a poll "
            f"may take {_POLL_TIMEOUT_S * 1000:.0f} ms in all",
            "move the server near to the EnvRunners, find out what keeps it busy (SLOWLOG), or "
            "raise poll_timeout_s",
        )


def clock(facts: Facts) -> Iterator[Finding]:
    """The clocks agree."""
    if abs(facts.clock_ahead_s) > _CLOCK_S:
        ahead = "ahead of" if facts.clock_ahead_s > 0 else "behind"
        yield Finding(
            Level.WARNING,
            "clock",
            f"the server's clock is {abs(facts.clock_ahead_s):.0f} s {ahead} this machine's: ages "
            "are shown wrong, and notes of readers are forgotten early or late",
            "synchronise both clocks (NTP)",
        )


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
    if facts.with_password or facts.user not in (None, "default"):
        return
    if not facts.is_local or (facts.config or {}).get("protected-mode") == "no":
        yield Finding(
            Level.ERROR,
            "access",
            "the server asks for no password: whoever reaches its port can replace the weights",
            "give it users, as in deploy/redis/users.acl",
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


CHECKS: tuple[Check, ...] = (
    version,
    role_of_server,
    cluster,
    eviction,
    memory,
    persistence,
    limits,
    clients,
    latency,
    clock,
    encryption,
    access,
    rights,
    not_looked_at,
)
