"""Sentinels from the files of `deploy/redis`: three of them, and a failover."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import re
from collections.abc import Iterator

import numpy as np
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from typer.testing import CliRunner

from redis_state_sync import StatePublisher, StateSubscriber, open_store
from redis_state_sync.cli.app import app
from redis_state_sync.errors import StoreError
from tests.contract.servers import until
from tests.deploy.group import CLIENT_PASSWORD, SENTINELS, Group, group
from tests.deploy.profiles import directives, path_of
from tests.deploy.server import PASSWORDS
from tests.deploy.test_scripts import health

pytestmark = pytest.mark.timeout(180)
ADDRESS = "REDIS_STATE_SYNC_SENTINEL"


@pytest.fixture(scope="module")
def made(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """Two data nodes and three sentinels, on Valkey and on Debian's Redis."""
    with group(kind, tmp_path_factory.mktemp("group")) as made:
        yield made


@pytest.fixture(autouse=True)
def passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"{ADDRESS}_USERNAME", "client")
    monkeypatch.setenv(f"{ADDRESS}_PASSWORD", CLIENT_PASSWORD)
    for role, password in PASSWORDS.items():
        monkeypatch.setenv(f"PASSWORD_OF_{role}", password)


def test_sentinel_settings_are_in_force(made: Group) -> None:
    """Every line of the template is what the sentinels report."""
    first = made.nodes[0]
    for sentinel in made.sentinels:
        client = made.client(sentinel)
        seen = made.seen_by(sentinel)
        assert seen["name"] == "state"
        assert (seen["ip"], seen["port"]) == ("localhost", first)
        assert seen["quorum"] == 2
        assert seen["down-after-milliseconds"] == 3000
        assert seen["failover-timeout"] == 10000
        assert seen["parallel-syncs"] == 1
        raw = client.execute_command("SENTINEL", "CONFIG", "GET", "*")
        got = raw if isinstance(raw, dict) else dict(zip(raw[::2], raw[1::2], strict=True))
        assert got["resolve-hostnames"] == "yes"
        assert got["announce-hostnames"] == "yes"
        assert got["announce-ip"] == "localhost"
        assert int(got["announce-port"]) == sentinel
        assert got["sentinel-user"] == "sentinel"
        identity = hashlib.sha256(f"localhost:{sentinel}".encode()).hexdigest()[:40]
        assert client.execute_command("SENTINEL", "MYID") == identity
        assert set(client.acl_users()) == {"default", "sentinel", "client", "root"}


def test_nothing_else_is_in_the_template() -> None:
    """Every line of the template is one of those that the other tests look at."""
    assert directives(path_of("sentinel.conf")).keys() == {"port", "bind", "sentinel", "user"}
    lines = path_of("sentinel.conf").read_text().splitlines()
    names = [" ".join(line.split()[1:2]) for line in lines if line.startswith("sentinel ")]
    assert names == [
        *("resolve-hostnames", "announce-hostnames", "announce-ip", "announce-port", "myid"),
        *("monitor", "auth-user", "auth-pass"),
        *("down-after-milliseconds", "failover-timeout", "parallel-syncs"),
        *("sentinel-user", "sentinel-pass"),
    ]
    assert [line.split()[1] for line in lines if line.startswith("user ")] == [
        *("default", "sentinel", "client"),
    ]
    assert "bind 127.0.0.1 -::1" in lines


@pytest.mark.parametrize(
    ("user", "password", "command", "allowed"),
    [
        ("client", CLIENT_PASSWORD, "SENTINEL MASTERS", True),
        ("client", CLIENT_PASSWORD, "SENTINEL GET-MASTER-ADDR-BY-NAME state", True),
        ("client", CLIENT_PASSWORD, "PING", True),
        ("client", CLIENT_PASSWORD, "SENTINEL SET state quorum 1", False),
        ("client", CLIENT_PASSWORD, "SENTINEL FAILOVER state", False),
        ("client", CLIENT_PASSWORD, "SENTINEL REMOVE state", False),
        ("client", CLIENT_PASSWORD, "SENTINEL CONFIG GET sentinel-pass", False),
        ("client", CLIENT_PASSWORD, "ACL LIST", False),
        ("client", CLIENT_PASSWORD, "SHUTDOWN", False),
        ("client", CLIENT_PASSWORD, "PUBLISH __sentinel__:hello x", False),
        ("sentinel", PASSWORDS["sentinel"], "SENTINEL SET state quorum 1", False),
        ("sentinel", PASSWORDS["sentinel"], "SENTINEL FAILOVER state", False),
    ],
)
def test_users_of_a_sentinel(
    made: Group, user: str, password: str, command: str, allowed: bool
) -> None:
    """A client may ask where the primary is; nobody may change what the sentinels do."""
    with contextlib.closing(made.client(made.sentinels[0], user, password)) as client:
        if allowed:
            assert client.execute_command(*command.split())
        else:
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.execute_command(*command.split())


def test_nobody_gets_in_without_a_name(made: Group) -> None:
    """Neither a sentinel nor a data node answers without a user and the right password."""
    for port in (*made.sentinels, *made.nodes):
        with pytest.raises(redis.AuthenticationError):
            redis.Redis(port=port, retry=Retry(NoBackoff(), 0)).ping()
        with pytest.raises(redis.AuthenticationError):
            made.client(port, "client", "wrong").ping()


def test_health_check_of_a_sentinel(made: Group) -> None:
    """The health check passes for the sentinels' own user, and fails with a wrong password."""
    secrets = made.folder / "secrets"
    for port in made.sentinels:
        assert health("client", secrets / "sentinel_client_password", port) == 0
        assert health("client", secrets / "replica_password", port) != 0


def test_no_password_is_shown(made: Group) -> None:
    """Passwords are in no command line or log, and files that hold one are the owner's alone."""
    secrets = {path.read_text() for path in (made.folder / "secrets").iterdir()}
    for port, process in made.processes.items():
        with open(f"/proc/{process.pid}/cmdline") as file:
            line = file.read()
        assert "valkey-server" in line
        log = (made.folder / str(port) / "log").read_text()
        assert not any(secret in line or secret in log for secret in secrets)
        for path in (made.folder / str(port) / "run").iterdir():
            assert path.stat().st_mode & 0o077 == 0, path


def test_a_client_without_a_user_for_the_sentinels(
    made: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A learner with the wrong password for the sentinels fails at start and names the variable."""
    monkeypatch.setenv(f"{ADDRESS}_PASSWORD", "wrong")
    store = open_store(made.url("learner"), password_env="PASSWORD_OF_learner")
    with pytest.raises(StoreError, match=f"{ADDRESS}_PASSWORD"):
        StatePublisher(store, "n")


def test_doctor_finds_nothing(made: Group) -> None:
    """Asked through the sentinels as one who may do everything, doctor has nothing to say."""
    variables = {
        "REDIS_STATE_SYNC_URL": made.url("root"),
        "REDIS_STATE_SYNC_PASSWORD": "root",
        f"{ADDRESS}_USERNAME": "client",
        f"{ADDRESS}_PASSWORD": CLIENT_PASSWORD,
    }
    done = CliRunner(env=variables).invoke(app, ["doctor"])
    assert done.exit_code == 0, done.output
    assert "nothing found" in done.stdout


def test_failover(made: Group) -> None:
    """The primary is killed: publishing goes on at the other node, which the old one then follows.

    Nobody is refused anything on the way: not the sentinels by the data nodes or by each other, nor
    the replica.
    """
    until(made.whole, "a group that is whole", timeout=60)
    for port in (*made.nodes, *made.sentinels):
        made.client(port).execute_command("ACL LOG RESET")
    stores = {
        role: open_store(made.url(role), password_env=f"PASSWORD_OF_{role}")
        for role in ("learner", "runner")
    }
    publisher = StatePublisher(stores["learner"], "n", heartbeat_s=0.2)
    reader = StateSubscriber(stores["runner"], "n", poll_timeout_s=5)
    with contextlib.closing(publisher):
        before = publisher.publish({"rl_module/p": {"w": np.zeros(3)}}).wait(10)
        assert reader.fetch(timeout=10).version == before  # type: ignore[union-attr]
        old = made.primary()
        (new,) = set(made.nodes) - {old}
        made.kill(old)
        handle = publisher.publish({"rl_module/p": {"w": np.ones(3)}})
        until(lambda: made.primary() == new, "a new primary", timeout=60)
        after = handle.wait(60)
        assert after > before
        got = []
        until(lambda: reader.refresh(got.append), "the newer version", timeout=30)
        assert got[-1].version >= after
        # As its container would be started again.
        made.start(old)
        until(made.whole, "the old primary as a replica", timeout=60)
        assert made.client(old).info("replication")["role"] == "slave"
        assert made.client(old).xlen("rss:{n}:versions")
    for port in (*made.nodes, *made.sentinels):
        log = made.client(port).acl_log()
        refused = [
            (entry["username"], entry["object"]) for entry in log if entry["reason"] != "auth"
        ]
        # Which redis-py asks for and does without.
        assert [entry for entry in refused if entry[1] != "client|setinfo"] == [], port
    assert len(made.sentinels) == SENTINELS


def test_a_new_sentinel_learns_where_the_primary_is(made: Group) -> None:
    """A sentinel that lost its folder asks the others, rather than watching the first node."""
    until(made.whole, "a group that is whole", timeout=60)
    sentinel, primary = made.sentinels[0], made.primary()
    made.kill(sentinel)
    conf = made.folder / str(sentinel) / "run" / "sentinel.conf"
    conf.unlink()
    # It would take this one if none of the others answered.
    other = next(port for port in made.nodes if port != primary)
    made.environment["RSS_FIRST"] = f"localhost:{other}"
    made.start(sentinel)
    until(made.whole, "a group that is whole", timeout=60)
    assert made.primary() == primary
    assert re.search(rf"sentinel monitor state \S+ {primary} 2", conf.read_text())


def test_all_of_it_was_down(made: Group) -> None:
    """After a start of everything at once, the primary is the one that it was last."""
    until(made.whole, "a group that is whole", timeout=60)
    primary = made.primary()
    made.client(primary).set("rss:{n}:blob:last", "x")
    until(
        lambda: all(made.client(port).exists("rss:{n}:blob:last") for port in made.nodes), "a copy"
    )
    made.environment["RSS_FIRST"] = next(
        f"localhost:{port}" for port in made.nodes if port != primary
    )
    for port in list(made.processes):
        made.kill(port)
    # The one that was a replica comes first.
    for port in sorted((*made.nodes, *made.sentinels), key=lambda port: port == primary):
        made.start(port)
    # On a slow machine the primary could come too late, and be replaced: rightly, but not our case.
    for port in made.sentinels:
        until(functools.partial(be_patient, made.client(port)), "a sentinel that answers")
    until(made.whole, "a group that is whole", timeout=60)
    assert made.primary() == primary
    assert made.client(primary).exists("rss:{n}:blob:last")


def be_patient(sentinel: redis.Redis) -> bool:
    """Has a sentinel wait a minute before it calls the primary down."""
    words = ("SET", "state", "down-after-milliseconds", "60000")
    return bool(sentinel.execute_command("SENTINEL", *words))
