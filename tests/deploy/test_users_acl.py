"""The users: what each may do and may not, asked of the real servers as that user."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from tests.deploy.server import NEEDED, PASSWORDS, Server, find_server, render_acl

VERSIONS = "rss:{team/a}:versions"
BLOB = "rss:{team/a}:blob:0a"
PINS = "rss:{team/a}:pins"
PINNED = "rss:{team/a}:pinned"
DROPPING = "rss:{team/a}:dropping"
READERS = "rss:{team/a}:readers"
OTHER = "celery"

CONNECT = ["PING", "TIME", "SELECT 0", "CLIENT SETNAME me"]
READ = [f"XREVRANGE {VERSIONS} + - COUNT 1", f"XREVRANGE {VERSIONS} + 7-2 COUNT 1", f"GET {BLOB}"]
NOTE = [f"HSET {READERS} me 7-1", f"EXPIRE {READERS} 60"]

ALLOWED = {
    "learner": [
        *(*CONNECT, *READ, *NOTE),
        f"SET {BLOB} x EX 60",
        f"EXPIRE {BLOB} 60",
        f"EXPIRE {VERSIONS} 60",
        f"XADD {VERSIONS} 8-1 manifest m",
        f"XDEL {VERSIONS} 8-1",
        f"HSET {PINS} best 7-1",
        f"HGET {READERS} !resend",
        f"HDEL {READERS} !resend",
        f"HGETALL {PINS}",
        f"HDEL {PINS} gone",
        f"HGET {PINNED} 7-1",
        f"HSET {PINNED} 7-1 m",
        f"HDEL {PINNED} 7-1",
        f"PERSIST {BLOB}",
        f"EXISTS {BLOB}",
        f"PTTL {VERSIONS}",
        f"SET {DROPPING} 7-1 EX 10",
        f"GET {DROPPING}",
        f"UNLINK {DROPPING}",
        f"HGETALL {READERS}",
        f"UNLINK {BLOB}",
    ],
    "runner": [*CONNECT, *READ, *NOTE, f"HGETALL {PINS}", f"HGET {PINNED} 7-1"],
    "operator": [
        *(*CONNECT, *READ, *NOTE),
        "INFO",
        "SCAN 0 MATCH rss:* COUNT 10",
        f"EXISTS {BLOB}",
        f"MEMORY USAGE {BLOB}",
        f"STRLEN {BLOB}",
        f"XLEN {VERSIONS}",
        f"XRANGE {VERSIONS} - +",
        f"HGETALL {PINS}",
        f"HGETALL {READERS}",
        f"HSET {PINS} best 7-1",
        f"HDEL {PINS} best",
        f"HGET {PINNED} 7-1",
        f"HSET {PINNED} 7-1 m",
        f"HDEL {PINNED} 7-1",
        f"PERSIST {BLOB}",
        f"EXPIRE {BLOB} 60",
        f"PTTL {VERSIONS}",
        f"GET {DROPPING}",
        f"UNLINK {BLOB}",
        f"DEL {VERSIONS}",
    ],
    "monitor": [
        *CONNECT,
        "INFO",
        "SLOWLOG LEN",
        "LATENCY LATEST",
        "SCAN 0 MATCH rss:* COUNT 10",
        f"XREVRANGE {VERSIONS} + - COUNT 1",
        f"XRANGE {VERSIONS} - +",
        f"XLEN {VERSIONS}",
        f"GET {DROPPING}",
        f"HGETALL {PINS}",
        f"HGET {PINNED} 7-1",
        f"HGETALL {READERS}",
        f"PTTL {VERSIONS}",
        f"PTTL {BLOB}",
        f"EXISTS {BLOB}",
        f"STRLEN {BLOB}",
        f"MEMORY USAGE {BLOB}",
    ],
    "replica": ["PING", "REPLCONF listening-port 1"],
    "sentinel": [
        "PING",
        "INFO",
        "ROLE",
        "CLIENT SETNAME me",
        "CLIENT KILL TYPE pubsub",
        "PUBLISH __sentinel__:hello x",
        "REPLICAOF NO ONE",
        "SLAVEOF NO ONE",
    ],
}

# What no role may do: look at or change what belongs to others, stop the server, run code.
NOBODY = [
    f"GET {OTHER}",
    "FLUSHALL",
    "FLUSHDB",
    "KEYS *",
    "RANDOMKEY",
    "CONFIG GET *",
    "CONFIG SET maxmemory 0",
    "ACL LIST",
    "ACL SETUSER runner +@all",
    "CLIENT LIST",
    "CLIENT KILL ID 1",
    "EVAL return 0",
    "FUNCTION LIST",
    "MODULE LIST",
    "MONITOR",
    "PUBLISH channel x",
    "REPLICAOF NO ONE",
    "SAVE",
    "SHUTDOWN NOSAVE",
    "SWAPDB 0 1",
    f"DUMP {BLOB}",
    f"RENAME {BLOB} {OTHER}",
    f"XTRIM {VERSIONS} MAXLEN 0",
    f"XSETID {VERSIONS} 1-1",
]
SENTINELS_WORK = ("CLIENT KILL ID 1", "REPLICAOF NO ONE")
PUBLISH = [
    f"SET {BLOB} forged",
    f"XADD {VERSIONS} 9-1 manifest forged",
    f"XDEL {VERSIONS} 7-1",
    f"EXPIRE {VERSIONS} 1",
    f"PERSIST {VERSIONS}",
    f"EXPIRE {PINS} 1",
    f"SET {DROPPING} 7-1",
]
DENIED = {
    "learner": [
        *NOBODY,
        f"SET {OTHER} x",
        f"XADD {OTHER} 9-1 manifest m",
        f"UNLINK {OTHER}",
        f"DEL {VERSIONS}",
        "SCAN 0",
        "INFO",
    ],
    "runner": [
        *NOBODY,
        *PUBLISH,
        f"HSET {PINS} best 7-1",
        f"HDEL {PINS} best",
        f"HSET {PINNED} 7-1 m",
        f"HDEL {PINNED} 7-1",
        f"EXPIRE {BLOB} 1",
        f"PERSIST {BLOB}",
        f"HSET {VERSIONS} a b",
        f"HDEL {READERS} me",
        f"UNLINK {BLOB}",
        f"DEL {VERSIONS}",
        f"HGETALL {READERS}",
        "SCAN 0",
        "INFO",
    ],
    "operator": [
        *NOBODY,
        *PUBLISH,
        f"HSET {VERSIONS} a b",
        f"HDEL {READERS} me",
        f"EXPIRE {OTHER} 1",
        f"PERSIST {OTHER}",
        f"UNLINK {OTHER}",
        f"DEL {OTHER}",
        f"MEMORY USAGE {OTHER}",
        "MEMORY DOCTOR",
    ],
    "monitor": [
        *NOBODY,
        *PUBLISH,
        f"GET {BLOB}",
        f"HSET {READERS} me 7-1",
        f"HSET {PINS} best 7-1",
        f"HDEL {PINS} best",
        f"UNLINK {BLOB}",
        f"DEL {VERSIONS}",
        f"STRLEN {OTHER}",
        f"MEMORY USAGE {OTHER}",
        "SLOWLOG GET",
    ],
    "replica": [*NOBODY, *PUBLISH, *READ, "INFO", "SCAN 0", "SELECT 1"],
    "sentinel": [
        *(c for c in NOBODY if c not in SENTINELS_WORK),
        *(*PUBLISH, *READ, "SCAN 0", "PUBLISH other x", "SUBSCRIBE other"),
    ],
}


def cases(table: dict[str, list[str]]) -> list[tuple[str, str]]:
    return [(user, command) for user, commands in table.items() for command in commands]


def words(command: str) -> list[str]:
    return ["EVAL", "return 0", "0"] if command.startswith("EVAL") else command.split()


@pytest.fixture(scope="module")
def server(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for all commands: none that is allowed changes what another one may do."""
    folder = tmp_path_factory.mktemp("acl")
    binary, version = find_server(kind)
    acl = render_acl(folder / "users.acl", version)
    with acl.open("a") as file:
        file.write("user root on >root ~* &* +@all\n")
    server = Server(binary, folder, "--aclfile", str(acl))
    try:
        server.version = version
        yield server.start()
    finally:
        server.close()


@pytest.fixture
def seeded(server: Server) -> Server:
    """A server that holds one version, with a blob and a pin, and a key of somebody else."""
    root = server.client("root")
    root.flushall()
    root.execute_command("ACL LOG RESET")
    root.xadd(VERSIONS, {"manifest": b"m"}, id="7-1")
    root.set(BLOB, b"x")
    root.hset(PINS, "best", "7-1")
    root.set(OTHER, b"x")
    return server


@pytest.mark.parametrize(("user", "command"), cases(ALLOWED))
def test_allowed(seeded: Server, user: str, command: str) -> None:
    """Each role can do all that its job takes, and is refused nothing on the way."""
    setinfo = seeded.version < (7, 2) or user in ("replica", "sentinel")
    with seeded.client(user) as client:
        client.execute_command(*words(command))
    refused = seeded.client("root", decode_responses=True).acl_log()
    if setinfo:  # Which is for clients of ours, and not in every server.
        refused = [entry for entry in refused if entry["object"] != "client|setinfo"]
    assert refused == []


@pytest.mark.parametrize("command", ["CONFIG REWRITE", "SCRIPT KILL", "MULTI", "PSYNC ? -1"])
def test_allowed_and_only_asked_for(seeded: Server, command: str) -> None:
    """What would change the profile itself, or this connection, is allowed to those who need it."""
    user = "replica" if command.startswith("PSYNC") else "sentinel"
    root = seeded.client("root", decode_responses=True)
    assert root.execute_command("ACL DRYRUN", user, *command.split()) == "OK"


@pytest.mark.parametrize(("user", "command"), cases(DENIED))
def test_denied(seeded: Server, user: str, command: str) -> None:
    """Each role is refused what is not its job, and what belongs to others."""
    with seeded.client(user) as client, pytest.raises(redis.exceptions.NoPermissionError):
        client.execute_command(*words(command))


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("user", sorted((*NEEDED, "monitor")))
def test_clients_connect(seeded: Server, user: str, protocol: int) -> None:
    """Every role connects by RESP2 and RESP3, with a client name and another database."""
    with seeded.client(user, protocol=protocol, client_name="me", db=1) as client:
        assert client.ping()


@pytest.mark.parametrize("user", sorted(PASSWORDS))
def test_password_is_checked(seeded: Server, user: str) -> None:
    """A role with another role's password, or with none, does not get in."""
    other = next(word for role, word in PASSWORDS.items() if role != user)
    for password in (other, ""):
        with pytest.raises(redis.AuthenticationError):
            seeded.client(user, password=password).ping()


def test_nobody_gets_in_without_a_name(seeded: Server) -> None:
    """The default user is off, and has no password that could be tried."""
    with pytest.raises(redis.AuthenticationError):
        seeded.client(None).ping()
    default = seeded.client("root", decode_responses=True).acl_getuser("default")
    assert "off" in default["flags"]
    assert "nopass" not in default["flags"]
    assert default["passwords"] == []


def test_there_are_no_other_users(seeded: Server) -> None:
    """The file makes the roles that have a password, and the default user, and nobody else."""
    users = set(seeded.client("root", decode_responses=True).acl_users())
    assert users == {"default", *PASSWORDS, "root"}
