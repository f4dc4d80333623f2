"""The configuration files of `deploy/redis`: what each of them is meant to set."""

from __future__ import annotations

from pathlib import Path

from tests.deploy.server import DEPLOY

UNITS = {"kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30}
# Where a setting's value is another one on every machine, or in every test.
PLACES = ("port", "tls-port", "aclfile", "tls-cert-file", "tls-key-file", "tls-ca-cert-file")

# By file: all that it sets, as the server says it. A line that goes missing, or one that comes
# without a reason to expect it, differs from this.
EXPECTED: dict[str, dict[str, str]] = {
    "valkey.conf": {
        "bind": "127.0.0.1 -::1",
        "protected-mode": "yes",
        "port": "6379",
        "timeout": "0",
        "tcp-keepalive": "60",
        "aclfile": "/etc/redis-state-sync/users.acl",
        "maxmemory": "2147483648",
        "maxmemory-policy": "noeviction",
        "proto-max-bulk-len": "536870912",
        "client-output-buffer-limit": (
            "normal 268435456 134217728 60 slave 1073741824 536870912 60 pubsub 33554432 8388608 60"
        ),
        "lazyfree-lazy-eviction": "yes",
        "lazyfree-lazy-expire": "yes",
        "lazyfree-lazy-server-del": "yes",
        "lazyfree-lazy-user-del": "yes",
        "appendonly": "yes",
        "appendfsync": "everysec",
        "no-appendfsync-on-rewrite": "yes",
        "auto-aof-rewrite-min-size": "1073741824",
        "auto-aof-rewrite-percentage": "100",
        "save": "",
        "io-threads": "1",
    },
    "ephemeral.conf": {"appendonly": "no"},
    "replica.conf": {
        "masteruser": "replica",
        "replica-read-only": "yes",
        "repl-backlog-size": "268435456",
        "repl-diskless-sync": "yes",
        "repl-diskless-sync-delay": "0",
        "min-replicas-to-write": "0",
    },
    "tls.conf": {
        "port": "0",
        "tls-port": "6379",
        "tls-cert-file": "/etc/redis-state-sync-tls/tls.crt",
        "tls-key-file": "/etc/redis-state-sync-tls/tls.key",
        "tls-ca-cert-file": "/etc/redis-state-sync-tls/ca.crt",
        "tls-auth-clients": "no",
        "tls-protocols": "TLSv1.2 TLSv1.3",
        "tls-replication": "yes",
    },
}


def path_of(name: str) -> Path:
    return DEPLOY / "redis" / name


def plain(value: str) -> str:
    """``256mb`` as the server says it: in bytes."""
    words = [
        str(int(word[:-2]) * UNITS[word[-2:]])
        if word[-2:] in UNITS and word[:-2].isdigit()
        else word
        for word in value.strip('"').split()
    ]
    return " ".join(words)


def directives(path: Path) -> dict[str, str]:
    """Name -> value, in the server's words; the lines of one name behind each other."""
    found: dict[str, str] = {}
    for line in path.read_text().splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.partition(" ")
            # Servers call replicas by their old name here.
            value = plain(value).replace("replica ", "slave ")
            found[name] = f"{found[name]} {value}" if name in found else value
    return found
