"""What `doctor` finds wrong with a server itself: pure functions of what it said."""

from __future__ import annotations

from collections.abc import Iterator

from redis_state_sync.cli.facts import Facts
from redis_state_sync.cli.findings import Finding, Level
from redis_state_sync.cli.output import size

_OLDEST = (5, 0)
# Of a `sample()`, by default.
_POLL_TIMEOUT_S = 0.05
_SLOW_S = 0.005
_CLOCK_S = 30.0
# Below, what is not in memory may be libraries that nobody needed.
_WORTH_A_LOOK = 100 << 20


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


def machine(facts: Facts) -> Iterator[Finding]:
    """The machine has the memory that the server is to use, and some for its fork."""
    there, used = facts.number("total_system_memory"), facts.number("used_memory")
    limit = facts.number("maxmemory")
    if 0 < there < limit:
        yield Finding(
            Level.ERROR,
            "maxmemory",
            f"maxmemory is {size(limit)}, and the machine has {size(there)}: when that runs out "
            "the kernel kills the server",
            "set maxmemory to half of the memory that the server may have",
        )
    if 0 < there < 2 * used and facts.writes_to_disk:
        yield Finding(
            Level.WARNING,
            "fork",
            f"{size(used)} of the machine's {size(there)} are used: the process that writes them "
            "to the disk may not be given as much again, and then the server refuses all writes "
            "(MISCONF)",
            'use less memory, set vm.overcommit_memory to 1, or, without pins, save "" and '
            "appendonly no",
        )
    resident = facts.number("used_memory_rss")
    if used > _WORTH_A_LOOK and 0 < resident < 0.7 * used:
        yield Finding(
            Level.WARNING,
            "swap",
            f"of {size(used)} that the server uses, {size(resident)} are in memory: the rest was "
            "swapped out, and polls wait for the disk",
            "give the machine more memory, or the server less (maxmemory), and turn swapping off",
        )


def persistence(facts: Facts) -> Iterator[Finding]:
    """What is pinned outlives a restart, and what is to be written can be."""
    if facts.pins and not facts.writes_to_disk:
        yield Finding(
            Level.WARNING,
            "persistence",
            f"the server keeps nothing on disk, and holds pins ({facts.pins}): a restart loses "
            "them. (What a living learner published comes back by itself.)",
            "set appendonly yes",
        )
    elif facts.pins and facts.info.get("aof_enabled") == "0":
        yield Finding(
            Level.NOTE,
            "persistence",
            f"the server writes to its disk now and then, and holds pins ({facts.pins}): a crash "
            "loses those that were made since",
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
