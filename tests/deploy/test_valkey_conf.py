"""The profile and what may be added to it, on the real servers."""

from __future__ import annotations

import contextlib
import socket
import time
from pathlib import Path

import numpy as np
import pytest
import redis

from redis_state_sync import StatePublisher, open_store
from tests.deploy.conftest import Boot
from tests.deploy.profiles import EXPECTED, PLACES, directives, path_of
from tests.deploy.server import PASSWORDS, PROFILE

PIECE = b"x" * (4 << 20)
KEY = "rss:{test}:blob:00"


ADDITIONS: dict[str, list[str]] = {
    "durable": [],
    "ephemeral": ["ephemeral.conf"],
    "node": ["replica.conf"],
    "ephemeral-node": ["ephemeral.conf", "replica.conf"],
}


@pytest.mark.parametrize("name", EXPECTED)
def test_files_set_what_they_are_meant_to(name: str) -> None:
    """Each file has these lines with these values: none is missing, none too many."""
    assert directives(path_of(name)) == EXPECTED[name]


@pytest.mark.parametrize("profile", ADDITIONS)
def test_settings_are_in_force(boot: Boot, profile: str) -> None:
    """Every setting of the files is what the server reports, but for where a test has it."""
    names = ADDITIONS[profile]
    server = boot(additions=[path_of(name) for name in names])
    got = server.client("root", decode_responses=True).config_get("*")
    wanted = {}
    for name in ("valkey.conf", *names):
        wanted.update(EXPECTED[name])
    assert wanted.keys() <= got.keys()
    for place in PLACES:
        wanted.pop(place, None)
    assert {name: got[name] for name in wanted} == wanted


def test_nothing_is_open_as_shipped() -> None:
    """The profile listens on loopback, trusts nobody without a password, and wants a users file."""
    found = directives(PROFILE)
    assert found["bind"] == "127.0.0.1 -::1"
    assert found["protected-mode"] == "yes"
    assert found["aclfile"]


@pytest.mark.parametrize("name", [*EXPECTED, "sentinel.conf"])
def test_every_setting_has_its_reason(name: str) -> None:
    """No setting stands without a comment above it, its own or its group's."""
    lines = path_of(name).read_text().splitlines()
    for number, line in enumerate(lines):
        if line and not line.startswith("#"):
            before = lines[number - 1]
            assert before, f"line {number + 1} has no reason: {line}"
            assert not before.startswith("# ---"), f"line {number + 1} has no reason: {line}"


def test_does_not_start_without_users(boot: Boot, tmp_path: Path) -> None:
    """A users file that is not there stops the server, rather than letting everybody in."""
    with pytest.raises(RuntimeError, match="ACL"):
        boot("--aclfile", str(tmp_path / "missing.acl"))


def test_does_not_start_with_the_template(boot: Boot) -> None:
    """The users file with its placeholders stops the server: no password is a default."""
    with pytest.raises(RuntimeError, match="ACL"):
        boot("--aclfile", str(PROFILE.parent / "users.acl"))


def test_full_server_refuses_and_forgets_nothing(boot: Boot) -> None:
    """When memory is full, a publish fails with OOM and every stored blob is still there."""
    server = boot("--maxmemory", "32mb")
    learner = server.client("learner")
    names = [f"rss:{{test}}:blob:{number:02}" for number in range(20)]
    stored = 0
    try:
        for name in names:
            learner.set(name, PIECE)
            stored += 1
    except redis.OutOfMemoryError:
        pass
    assert 2 < stored < len(names)
    assert server.client("operator").exists(*names) == stored


def test_state_survives_a_killed_server(boot: Boot) -> None:
    """After SIGKILL and a restart, versions, blobs and pins are as they were."""
    server = boot()
    learner = server.client("learner")
    learner.xadd("rss:{test}:versions", {"manifest": b"m"}, id="7-1")
    learner.set(KEY, PIECE, ex=1000)
    learner.hset("rss:{test}:pins", "best", "7-1")
    server.kill()
    server.start()
    learner = server.client("learner")
    assert learner.xrevrange("rss:{test}:versions", count=1) == [(b"7-1", {b"manifest": b"m"})]
    assert learner.get(KEY) == PIECE
    assert learner.hgetall("rss:{test}:pins") == {b"best": b"7-1"}


def test_ephemeral_variant_keeps_nothing(boot: Boot, tmp_path: Path) -> None:
    """With ephemeral.conf, nothing is written to disk, at exit either."""
    server = boot(additions=[path_of("ephemeral.conf")])
    server.client("learner").set(KEY, b"x")
    with pytest.raises(redis.ConnectionError):
        server.client("root").execute_command("SHUTDOWN")
    assert {path.name for path in tmp_path.iterdir()} == {"log", "users.acl"}


def test_a_learner_fills_an_ephemeral_server_again(
    boot: Boot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a living learner published is there again after a restart that lost it."""
    monkeypatch.setenv("REDIS_STATE_SYNC_PASSWORD", PASSWORDS["learner"])
    server = boot(additions=[path_of("ephemeral.conf")])
    store = open_store(f"unix://learner@{server.socket}")
    with contextlib.closing(StatePublisher(store, "n", heartbeat_s=0.05)) as publisher:
        version = publisher.publish({"rl_module/p": {"w": np.zeros(3)}}).wait(10)
        server.kill()
        server.start()
        deadline = time.monotonic() + 20
        while not server.client("root").xlen("rss:{n}:versions"):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        ((newest, _),) = server.client("root").xrevrange("rss:{n}:versions", count=1)
        assert newest.decode() >= str(version)


@pytest.mark.parametrize(("pieces", "served"), [(16, True), (80, False)])
def test_only_a_reader_that_hoards_is_cut_off(boot: Boot, pieces: int, served: bool) -> None:
    """A reader that stalls with 64 MB outstanding gets them all; with 320 MB it is disconnected."""
    server = boot()
    server.client("learner").set(KEY, PIECE)
    with socket.socket(socket.AF_UNIX) as reader:
        reader.connect(server.socket)
        reader.settimeout(10)
        reader.sendall(b"AUTH root root\r\n" + f"GET {KEY}\r\n".encode() * pieces)
        # Valkey looks at each client once a second, Redis when it queues a reply.
        time.sleep(1.5)
        received = 0
        while received < pieces * len(PIECE):
            try:
                chunk = len(reader.recv(1 << 20))
            except ConnectionError:
                chunk = 0
            if not chunk:
                break
            received += chunk
    assert (received >= pieces * len(PIECE)) == served
