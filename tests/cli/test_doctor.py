"""`doctor`: misconfigurations that are planted in real servers are found, each with its remedy."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis

from redis_state_sync import History, StatePublisher, open_store
from redis_state_sync.cli.checks import CHECKS, examine
from redis_state_sync.cli.facts import Facts
from redis_state_sync.cli.findings import Level
from redis_state_sync.cli.rights import PROBE
from redis_state_sync.embedded import EmbeddedServer
from redis_state_sync.endpoint import parse_url
from tests.cli.conftest import Cli, read, state
from tests.contract.cluster import cluster
from tests.contract.servers import (
    WAIT,
    Authority,
    free_port,
    options,
    start,
    tls_server,
    until,
    valkey_binary,
)

# A server that nothing is wrong with.
SOUND = ("maxmemory 1gb", "maxmemory-policy noeviction")


@contextmanager
def server(*config: str, port: int = 0) -> Iterator[EmbeddedServer]:
    with start(valkey_binary(), *SOUND, *config, port=port) as made:
        yield made


def findings(cli: Cli, url: str, *words: str) -> dict[str, tuple[str, str]]:
    """Name of each finding -> its level and text; the exit status fits."""
    result = None
    for code in (0, 1):
        try:
            result = cli("doctor", "--url", url, "--json", *words, code=code)
        except AssertionError:
            continue
        found = read(result)["findings"]
        assert (code == 1) == any(f["level"] == "error" for f in found)
        assert all(len(f["remedy"]) > 10 for f in found)
        return {f["name"]: (f["level"], f["text"]) for f in found}
    raise AssertionError


def client(made: EmbeddedServer) -> redis.Redis:
    return redis.Redis(unix_socket_path=str(made.socket_path))


def test_a_sound_server(cli: Cli) -> None:
    """Nothing is found on a sound server, with states in it, and nothing is changed there."""
    with server() as made:
        before = set()
        for namespace in (None, "a"):
            if namespace:
                with closing(StatePublisher(open_store(made.url), "a")) as publisher:
                    publisher.publish(state(1)).wait(WAIT)
            before = {name: client(made).dump(name) for name in client(made).scan_iter()}
            for role in ("runner", "learner", "operator"):
                words = [namespace] if namespace else []
                assert findings(cli, made.url, *words, "--role", role) == {}
            assert {name: client(made).dump(name) for name in client(made).scan_iter()} == before
        shown = cli("doctor", "--url", made.url).stdout
        assert f"{len(CHECKS)} checks: nothing found" in shown
        assert "Valkey" in shown
    assert "no server" in cli("doctor", "--url", "memory://x", code=2).stderr


PLANTED: dict[str, tuple[Sequence[str], str, str, str]] = {
    "eviction": (("maxmemory-policy allkeys-lru",), "eviction", "error", "allkeys-lru"),
    "volatile": (("maxmemory-policy volatile-ttl",), "eviction", "error", "pinned"),
    "unlimited": (("maxmemory 0",), "maxmemory", "warning", "kernel"),
    "output-buffer": (
        ("client-output-buffer-limit normal 16mb 8mb 60",), "output-buffer", "error", "16777216",
    ),
    "bulk": (("proto-max-bulk-len 1mb",), "proto-max-bulk-len", "error", "4.0 MiB"),
    "query-buffer": (
        ("client-query-buffer-limit 2mb",), "client-query-buffer-limit", "error", "2.0 MiB",
    ),
    "clients-memory": (("maxmemory-clients 20mb",), "maxmemory-clients", "error", "20.0 MiB"),
    "idle": (("timeout 30",), "timeout", "warning", "30 s"),
    "replicas": (("min-replicas-to-write 1",), "min-replicas", "error", "refuses writes"),
    "fsync": (("appendonly yes", "appendfsync always"), "appendfsync", "warning", "disk"),
    "maxclients": (("maxclients 2",), "maxclients", "warning", "of at most 2"),
    "open": (("protected-mode no",), "access", "error", "no password"),
    "keepalive": (("tcp-keepalive 0",), "tcp-keepalive", "warning", "firewall"),
    "too-much": (("maxmemory 900000gb",), "maxmemory", "error", "the machine has"),
    "renamed": (('rename-command PERSIST ""',), "commands", "error", "no PERSIST"),
    "disabled": (("rename-command XADD hidden",), "commands", "error", "no XADD"),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_planted_in_the_configuration(cli: Cli, name: str) -> None:
    """A single wrong line is found, and nothing else is."""
    config, finding, level, text = PLANTED[name]
    with server(*config) as made:
        holding = client(made)  # A second client, next to doctor's.
        holding.ping()
        found = findings(cli, made.url, "--role", "learner")
        assert found.keys() == {finding}
        assert found[finding][0] == level
        assert text in found[finding][1]
        holding.close()


def test_a_replica(cli: Cli) -> None:
    """A server that follows another one takes no writes."""
    with server() as made:
        client(made).execute_command("REPLICAOF", "127.0.0.1", free_port())
        assert findings(cli, made.url)["replica"][0] == "error"


def test_a_node_of_a_cluster(cli: Cli) -> None:
    """A plain URL to a node of a cluster is found; one that says that it is a cluster is not."""
    with cluster("maxmemory 1gb") as nodes:
        port = next(iter(nodes.nodes))
        assert "cluster" in findings(cli, f"redis://127.0.0.1:{port}", "some-namespace")
        assert findings(cli, nodes.url()) == {}


def test_too_little_memory(cli: Cli) -> None:
    """A state that does not fit as often as it is kept is found before the server is full."""
    with server() as made:
        with closing(StatePublisher(open_store(made.url), "a", history=4)) as publisher:
            for number in range(4):
                weights = {"w": os.urandom(4 << 20), "n": number}
                publisher.publish({"rl_module/p": weights}).wait(WAIT)
        client(made).config_set("maxmemory", "18mb")
        level, text = findings(cli, made.url)["memory"]
        assert level == "error"
        assert "20.0 MiB" in text
        client(made).config_set("maxmemory", "100mb")
        client(made).set("of somebody else", bytes(8 << 20))
        client(made).config_set("maxmemory", int(client(made).info("memory")["used_memory"] * 1.05))
        level, text = findings(cli, made.url)["memory"]
        assert level == "warning"
        assert "are used" in text
        client(made).config_set("maxmemory", "100mb")
        assert findings(cli, made.url) == {}


def test_pins_on_a_server_that_keeps_nothing(cli: Cli) -> None:
    """Pins that a restart would lose are found, and are none where there is a disk."""
    with server() as made:
        with closing(StatePublisher(open_store(made.url), "a")) as publisher:
            publisher.publish(state(1)).wait(WAIT)
            History(open_store(made.url), "a").pin("best")
        client(made).config_set("save", "")
        level, text = findings(cli, made.url)["persistence"]
        assert (level, "a restart loses them" in text) == ("warning", True)
        client(made).config_set("save", "3600 1")
        level, text = findings(cli, made.url)["persistence"]
        assert (level, "a crash loses those" in text) == ("note", True)
        client(made).config_set("appendonly", "yes")
        assert findings(cli, made.url) == {}


def test_a_disk_that_can_not_be_written(cli: Cli, tmp_path: Path) -> None:
    """A server that failed to save says so, before it refuses writes."""
    folder = tmp_path / "gone"
    folder.mkdir()
    with server("enable-protected-configs yes") as made:
        client(made).config_set("dir", str(folder))
        folder.rmdir()
        with pytest.raises(redis.ResponseError):
            client(made).save()
        client(made).execute_command("BGSAVE")
        until(
            lambda: client(made).info("persistence")["rdb_last_bgsave_status"] == "err", "a failure"
        )
        level, text = findings(cli, made.url)["disk"]
        assert (level, "rdb_last_bgsave_status" in text) == ("error", True)


def test_missing_rights(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command that the role needs and the user lacks is named; what was hidden is said."""
    with server() as made:
        client(made).execute_command(
            *("ACL", "SETUSER", "half", "on", ">word", "resetchannels", "~rss:{*}:*", "-@all"),
            *("+xrevrange", "+time", "+xadd", "+expire", "+unlink", "+ping", "+hgetall"),
        )
        monkeypatch.setenv("REDIS_STATE_SYNC_PASSWORD", "word")
        url = made.url.replace("unix://", "unix://half@")
        found = findings(cli, url)
        assert found["rights"] == (
            "error", "user ? may not run GET, which a runner needs",
        )  # fmt: skip
        assert "CONFIG GET" in found["not looked at"][1]
        _, text = findings(cli, url, "--role", "learner")["rights"]
        named = text.split("may not run ")[1].split(", which")[0].split(", ")
        assert named == ["GET", "XDEL", "SET", "PERSIST", "EXISTS", "PTTL", "HGET", "HDEL"]
        assert client(made).keys() == []


def test_a_user_who_may_not_ask_the_time(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a role lacks is found whatever it is, TIME as well."""
    with server() as made:
        client(made).execute_command("ACL", "SETUSER", "u", "on", ">word", "~*", "+@all", "-time")
        monkeypatch.setenv("REDIS_STATE_SYNC_PASSWORD", "word")
        _, text = findings(cli, made.url.replace("unix://", "unix://u@"))["rights"]
        assert "may not run TIME, which" in text


def test_a_way_around_the_users(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Users with passwords are no use while user default needs none and may do everything."""
    with server("protected-mode no") as made:
        client(made).execute_command("ACL", "SETUSER", "u", "on", ">word", "~*", "&*", "+@all")
        monkeypatch.setenv("REDIS_STATE_SYNC_PASSWORD", "word")
        url = made.url.replace("unix://", "unix://u@")
        level, text = findings(cli, url)["access"]
        assert (level, "user default" in text) == ("error", True)
        client(made).execute_command("ACL", "SETUSER", "default", "-@all", "+ping")
        assert findings(cli, url) == {}


def test_clients_that_were_turned_away(cli: Cli) -> None:
    """That connections were refused is found, also when there are enough of them again."""
    with server("maxclients 2") as made:
        holding = [client(made) for _ in range(2)]
        for each in holding:
            each.ping()
        with pytest.raises(redis.ConnectionError):
            client(made).ping()
        holding[0].config_set("maxclients", 100)
        for each in holding:
            each.close()
        level, text = findings(cli, made.url)["refused"]
        assert (level, text.split()[0].isdigit()) == ("warning", True)


def test_a_database_that_is_not_there(cli: Cli) -> None:
    """A URL with a database that the server does not have ends with the remedy."""
    with server(port=(port := free_port())):
        stderr = cli("doctor", "--url", f"redis://127.0.0.1:{port}/16", code=3).stderr
        assert "the number behind the host in the store URL is the database" in stderr


def test_a_key_outside_of_the_namespaces_of_a_user(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rights are tried in the namespace that is named."""
    with server() as made:
        client(made).execute_command(
            *("ACL", "SETUSER", "team", "on", ">word", "resetchannels", "~rss:{team/*}:*", "+@all")
        )
        monkeypatch.setenv("REDIS_STATE_SYNC_PASSWORD", "word")
        url = made.url.replace("unix://", "unix://team@")
        assert "rights" in findings(cli, url, PROBE)
        assert "rights" not in findings(cli, url, "team/a", "--role", "learner")


def test_a_certificate_that_is_not_verified(cli: Cli, tmp_path: Path) -> None:
    """TLS without a look at the certificate is found; with one it is not."""
    authority = Authority(tmp_path)
    with tls_server(authority, authority.issue("127.0.0.1")) as address:
        checked = options(ssl_ca_certs=authority.file)
        assert findings(cli, f"rediss://{address}{checked}").keys() == {"maxmemory"}
        found = findings(cli, f"rediss://{address}?ssl_cert_reqs=none")
        assert found["tls"][0] == "error"
        unnamed = options(ssl_ca_certs=authority.file, ssl_check_hostname="false")
        assert findings(cli, f"rediss://{address}{unnamed}")["tls"][0] == "warning"


def own_address() -> str:
    """An address of this machine that is not loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # Nothing is sent.
        except OSError:
            pytest.skip("this machine has no address but loopback")
        return str(probe.getsockname()[0])


def test_over_the_network_in_the_clear(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without TLS and without a password, a server that others reach is found."""
    address, port = own_address(), free_port()
    lines = (f"bind 127.0.0.1 {address}", "protected-mode no")
    with server(*lines, port=port) as made:
        url = f"redis://{address}:{port}"
        assert findings(cli, url).keys() == {"encryption", "access"}
        client(made).config_set("requirepass", "word")
        monkeypatch.setenv("REDIS_STATE_SYNC_PASSWORD", "word")
        found = findings(cli, url)
        assert found.keys() == {"encryption"}
        assert "the password and all states" in found["encryption"][1]


def test_a_server_that_is_not_there(cli: Cli) -> None:
    """What can not be reached ends with the store's status, and the message names it."""
    result = cli("doctor", "--url", f"redis://127.0.0.1:{free_port()}", "--timeout", 1, code=3)
    assert "redis://127.0.0.1" in result.stderr


SOUND_FACTS = Facts(
    parse_url("unix:///run/v"), True,
    {"redis_version": "7.2.4", "role": "master", "maxmemory": "1000", "used_memory": "10"},
    {"save": "900 1"}, "u", [0.0001] * 9,
)  # fmt: skip


def said(**numbers: int) -> dict[str, Any]:
    """What INFO says otherwise."""
    return {"info": {**SOUND_FACTS.info, **{name: str(n) for name, n in numbers.items()}}}


@pytest.mark.parametrize(
    ("change", "name", "level"),
    [
        ({"latencies_s": [0.006] * 9}, "latency", Level.WARNING),
        ({"latencies_s": [0.2] * 9}, "latency", Level.ERROR),
        ({"clock_ahead_s": 300.0}, "clock", Level.WARNING),
        ({"clock_ahead_s": -300.0}, "clock", Level.WARNING),
        ({"info": {**SOUND_FACTS.info, "redis_version": "4.0.14"}}, "version", Level.ERROR),
        ({"counted": False}, "not looked at", Level.NOTE),
        (
            {
                "info": SOUND_FACTS.info
                | {"total_system_memory": "15000", "used_memory": "8000", "maxmemory": "9000"}
            },
            "fork",
            Level.WARNING,
        ),
        (
            {"info": SOUND_FACTS.info | {"maxmemory": "9000", "total_system_memory": "8000"}},
            "maxmemory",
            Level.ERROR,
        ),
        (
            {
                "info": SOUND_FACTS.info
                | {
                    "used_memory": str(1 << 30),
                    "used_memory_rss": str(1 << 29),
                    "maxmemory": str(2 << 30),
                }
            },
            "swap",
            Level.WARNING,
        ),
        (
            {"info": SOUND_FACTS.info | {"client_output_buffer_limit_disconnections": "3"}},
            "hung-up",
            Level.WARNING,
        ),
        (
            {
                "info": SOUND_FACTS.info | {"connected_slaves": "1"},
                "config": {
                    "save": "900 1",
                    "client-output-buffer-limit": "normal 0 0 0 slave 2000 1000 60 pubsub 1 1 1",
                },
                "largest_bytes": 1500,
            },
            "replica-buffer",
            Level.WARNING,
        ),
    ],
)
def test_what_no_server_can_be_made_to_be(change: dict[str, Any], name: str, level: Level) -> None:
    """A slow server, a wrong clock and an old version are found, too."""
    assert examine(SOUND_FACTS) == []
    (finding,) = examine(replace(SOUND_FACTS, **change))
    assert (finding.name, finding.level) == (name, level)


def test_the_page_lists_the_findings() -> None:
    """docs/cli.md has each finding that there can be, and no other."""
    root = Path(__file__).resolve().parents[2]
    page = (root / "docs" / "cli.md").read_text().split("| finding |")[1].split("##")[0]
    listed = {name for row in re.findall(r"^\| (`.*?) \|", page, re.M) for name in words(row)}
    files = sorted((root / "src/redis_state_sync/cli").glob("check_*.py"))
    code = "".join(file.read_text() for file in files)
    made = set(re.findall(r'(?:Level\.\w+|Level\.WARNING),\n\s+"([^"]+)",', code))
    assert listed == made | {"proto-max-bulk-len", "client-query-buffer-limit"}


def words(row: str) -> list[str]:
    return re.findall(r"`([^`]+)`", row)
