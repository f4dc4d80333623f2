"""TLS from the file of `deploy/redis`, on Debian's server, with certificates of our own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from redis_state_sync import StatePublisher, StateSubscriber, open_store
from redis_state_sync.cli.app import app
from redis_state_sync.errors import StoreError
from tests.contract.servers import Authority, options
from tests.deploy.conftest import rendered
from tests.deploy.profiles import EXPECTED, PLACES, path_of
from tests.deploy.server import PASSWORDS, Server, find_server, free_port
from tests.deploy.test_scripts import health

WHERE = "/etc/redis-state-sync-tls/"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder as cert-manager fills one: the authority's certificate, the server's, its key."""
    authority = Authority(tmp_path, "authority")
    own = authority.issue("127.0.0.1", "localhost")
    folder = tmp_path / "tls"
    folder.mkdir()
    for name, source in (("ca.crt", authority.file), ("tls.crt", own.cert), ("tls.key", own.key)):
        source.rename(folder / name)
    return folder


@pytest.fixture
def server(tmp_path: Path, files: Path) -> Iterator[Server]:
    """Debian's server, since the wheel's is built without TLS."""
    conf = path_of("tls.conf").read_text()
    assert conf.count(WHERE) == 3
    (tmp_path / "tls.conf").write_text(conf.replace(WHERE, f"{files}/"))
    binary, version = find_server("redis")
    port = free_port()
    given = ("--aclfile", str(rendered(tmp_path, version)), "--tls-port", str(port))
    made = Server(binary, tmp_path, *given, additions=[tmp_path / "tls.conf"])
    with contextlib.closing(made.start()):
        made.port = port
        yield made


def test_settings_are_in_force(server: Server, files: Path) -> None:
    """The server reports what the file sets, and the certificate's three files."""
    got = server.client("root", decode_responses=True).config_get("*")
    wanted = {**EXPECTED["valkey.conf"], **EXPECTED["tls.conf"]}
    for place in PLACES:
        wanted.pop(place, None)
    assert {name: got[name] for name in wanted} == wanted
    assert got["port"] == "0"
    assert got["tls-cert-file"] == str(files / "tls.crt")
    assert got["tls-key-file"] == str(files / "tls.key")
    assert got["tls-ca-cert-file"] == str(files / "ca.crt")


def test_learner_and_reader_are_encrypted(
    server: Server, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By rediss:// a learner publishes and a reader fetches, each with its own password."""
    trust = options(ssl_ca_certs=files / "ca.crt")
    for role in ("learner", "runner"):
        monkeypatch.setenv(f"PASSWORD_OF_{role}", PASSWORDS[role])
    stores = {
        role: open_store(
            f"rediss://{role}@localhost:{server.port}{trust}", password_env=f"PASSWORD_OF_{role}"
        )
        for role in ("learner", "runner")
    }
    with contextlib.closing(StatePublisher(stores["learner"], "n")) as publisher:
        version = publisher.publish({"rl_module/p": {"w": np.ones(3)}}).wait(10)
        snapshot = StateSubscriber(stores["runner"], "n").fetch(timeout=10)
    assert snapshot is not None
    assert snapshot.version == version
    assert server.client("root").acl_log() == []


def test_plain_connections_are_refused(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """By redis:// nothing gets in, and the error says what to use."""
    monkeypatch.setenv("REDIS_STATE_SYNC_PASSWORD", PASSWORDS["learner"])
    with pytest.raises(StoreError, match="rediss://"):
        StatePublisher(open_store(f"redis://learner@localhost:{server.port}"), "n")


def test_health_check_by_tls(server: Server, files: Path, tmp_path: Path) -> None:
    """With the authority it passes; with another one, a wrong password, or none of it, it fails."""
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    right.write_text(PASSWORDS["runner"])
    wrong.write_text("not the runner's password")
    stranger = Authority(tmp_path, "stranger").file
    assert health("runner", right, server.port, "--tls", str(files / "ca.crt")) == 0
    assert health("runner", wrong, server.port, "--tls", str(files / "ca.crt")) != 0
    assert health("runner", right, server.port, "--tls", str(stranger)) != 0
    assert health("runner", right, server.port) != 0
    for flags in (("--tls", str(files / "ca.crt")), ("--tls", str(stranger))):
        alive = health("runner", right, server.port, "--alive", *flags) == 0
        assert alive == ("stranger" not in flags[1])


def test_doctor_finds_nothing(server: Server, files: Path) -> None:
    """Doctor has nothing to say against the encrypted profile."""
    trust = options(ssl_ca_certs=files / "ca.crt")
    variables = {
        "REDIS_STATE_SYNC_URL": f"rediss://root@localhost:{server.port}{trust}",
        "REDIS_STATE_SYNC_PASSWORD": "root",
    }
    done = CliRunner(env=variables).invoke(app, ["doctor"])
    assert done.exit_code == 0, done.output
    assert "nothing found" in done.stdout
