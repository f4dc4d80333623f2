"""Tries what a role needs: commands that change nothing, whoever runs them."""

from __future__ import annotations

from redis_state_sync.errors import StoreError
from redis_state_sync.keys import Keys
from redis_state_sync.redis_store import RedisStore

# Where rights are tried if no namespace is given.
PROBE = "redis-state-sync.doctor"


def refused_to(store: RedisStore, role: str, keys: Keys, timeout: float) -> dict[str, StoreError]:
    """What the server says to the commands that a role needs and that it does not run.

    Each is tried in a way that changes nothing: on keys that are not there, or with a version that
    can not be stored.
    """
    blob = keys.blob("0" * 32)
    reading = [
        ("XREVRANGE", keys.versions, "+", "-", "COUNT", 1),
        ("GET", blob),
        ("TIME",),
    ]
    writing = [
        ("XADD", keys.versions, "0-0", "manifest", ""),
        ("XDEL", keys.versions, "0-0"),
        ("SET", blob, "", "XX"),
        ("EXPIRE", blob, 1),
        ("PERSIST", blob),
        ("EXISTS", blob),
        ("UNLINK", blob),
        ("PTTL", keys.versions),
        ("HGET", keys.readers, "!doctor"),
        ("HDEL", keys.readers, "!doctor"),
        ("HGETALL", keys.pins),
    ]
    operating = [
        ("SCAN", "0", "COUNT", 1),
        ("INFO", "server"),
        ("HGETALL", keys.readers),
        ("HGET", keys.pinned, "0-0"),
        ("HDEL", keys.pins, "!doctor"),
        ("PERSIST", blob),
        ("EXPIRE", blob, 1),
        ("PTTL", keys.versions),
        ("UNLINK", blob),
    ]
    commands = {
        "runner": reading,
        "learner": reading + writing,
        "operator": reading + operating,
    }[role]
    replies = store.ask(commands, timeout=timeout)
    return {
        str(command[0]): reply
        for command, reply in zip(commands, replies, strict=True)
        if isinstance(reply, StoreError)
    }
