"""The containers of the manifests, run here with their mounts: no cluster is needed."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from redis_state_sync import StatePublisher, open_store
from tests.contract.servers import Authority, free_ports, options, until
from tests.deploy.compose import here
from tests.deploy.group import replicas_known
from tests.deploy.kubernetes import SECRETS, Object, named, pod_of
from tests.deploy.server import DEPLOY, find_server, find_tool

Paths = list[tuple[str, str]]


def secret(folder: Path) -> Path:
    """All keys of the Secret, as `kubectl create secret --from-file` takes them."""
    users = ("monitor", "replica", "sentinel", "sentinel_client")
    (folder / "compose").mkdir(parents=True)
    (folder / "redis").symlink_to(DEPLOY / "redis")
    script = folder / "compose" / "make-secrets.sh"
    script.write_text((DEPLOY / "compose" / "make-secrets.sh").read_text())
    subprocess.run(["sh", script, *users], check=True)
    found = folder / "compose" / "secrets"
    assert SECRETS["redis-state-sync"] <= {path.name for path in found.iterdir()}
    return found


class Pod:
    """The volumes of a pod as folders, with the files that Kubernetes would put there.

    Args:
        overlay: Of deploy/kubernetes.
        name: Of the StatefulSet.
        number: Of the pod in it.
        folder: For the volumes.
        secrets: Folders of the Secrets by their names.
        ports: Host and port as in a cluster -> the port here.
    """

    def __init__(
        self,
        overlay: str,
        name: str,
        number: int,
        folder: Path,
        secrets: dict[str, Path],
        ports: dict[str, int],
    ) -> None:
        self._overlay, self._name = overlay, f"{name}-{number}"
        self._pod = pod_of(named(overlay, "StatefulSet", name))
        self._ports = ports
        self._folders: dict[str, Path] = {"data": folder / "data"}
        for volume in self._pod["volumes"]:
            self._folders[volume["name"]] = folder / volume["name"]
        for place in self._folders.values():
            place.mkdir(parents=True)
        for volume in self._pod["volumes"]:
            place = self._folders[volume["name"]]
            if "configMap" in volume:
                mode = volume["configMap"]["defaultMode"]
                data = named(overlay, "ConfigMap", volume["configMap"]["name"])["data"]
                files = {key: text.encode() for key, text in data.items()}
            elif "secret" in volume:
                mode = volume["secret"]["defaultMode"]
                source = secrets[volume["secret"]["secretName"]]
                items = volume["secret"].get("items") or [
                    {"key": path.name, "path": path.name} for path in source.iterdir()
                ]
                files = {item["path"]: (source / item["key"]).read_bytes() for item in items}
            else:
                continue
            for file, content in files.items():
                (place / file).write_bytes(content)
                (place / file).chmod(mode)
        self._tools = folder / "bin"
        self._tools.mkdir()
        (self._tools / "valkey-server").symlink_to(find_server("valkey")[0])

    def use(self, binary: str) -> None:
        """Takes another server."""
        (self._tools / "valkey-server").unlink()
        (self._tools / "valkey-server").symlink_to(binary)

    def mounted(self, container: Object) -> Paths:
        mounts = container["volumeMounts"]
        found = [(m["mountPath"], str(self._folders[m["name"]])) for m in mounts]
        return sorted(found, key=lambda pair: -len(pair[0]))

    def _environment(self, container: Object) -> dict[str, str]:
        known = {"POD_NAME": self._name, "POD_NAMESPACE": "redis-state-sync"}
        found = {"PATH": f"{self._tools}:{os.environ['PATH']}"}
        for variable in container.get("env", []):
            if "value" in variable:
                value = re.sub(r"\$\((\w+)\)", lambda m: known[m.group(1)], variable["value"])
                found[variable["name"]] = self._word(value, container)
        return found

    def _word(self, word: str, container: Object) -> str:
        for name, port in self._ports.items():
            word = word.replace(name, f"localhost:{port}")
        return {"*": "127.0.0.1", "-::*": "-::1"}.get(word, here(word, self.mounted(container)))

    def init(self) -> None:
        """Runs the init containers, one after the other."""
        for container in self._pod.get("initContainers", []):
            words = [self._word(word, container) for word in container["command"]]
            subprocess.run(words, env=self._environment(container), check=True)

    def start(self, *more: str) -> subprocess.Popen[bytes]:
        (container,) = self._pod["containers"]
        words = [self._word(word, container) for word in container["command"]]
        return subprocess.Popen([*words, *more], env=self._environment(container))

    def probe(self, name: str, port: int) -> bool:
        (container,) = self._pod["containers"]
        command = container[f"{name}Probe"]["exec"]["command"]
        words = [self._word(word, container) for word in command if not word.isdigit()]
        done = subprocess.run(
            [*words, str(port)], env=self._environment(container), capture_output=True, check=False
        )
        return done.returncode == 0

    def overwrite(self, path: str, text: str) -> None:
        (container,) = self._pod["containers"]
        file = Path(here(path, self.mounted(container)))
        file.chmod(0o600)
        file.write_text(text)

    def until_ready(self, port: int) -> None:
        deadline = time.monotonic() + 40
        while not self.probe("readiness", port):
            assert time.monotonic() < deadline, self._name
            time.sleep(0.05)


@pytest.fixture(autouse=True)
def tools(monkeypatch: pytest.MonkeyPatch) -> None:
    find_tool("valkey-cli", "redis-cli")


@contextmanager
def started(pod: Pod, *more: str) -> Iterator[None]:
    process = pod.start(*more)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def test_base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The init container makes the users, the server starts with them, and the probes pass.

    With a wrong password the server is not ready, but is left alive; without it, it is neither.
    """
    secrets = secret(tmp_path / "d")
    pod = Pod("base", "valkey", 0, tmp_path / "pod", {"redis-state-sync": secrets}, {})
    pod.init()
    (port,) = free_ports(1)
    with started(pod, "--port", str(port)):
        pod.until_ready(port)
        assert pod.probe("startup", port)
        assert pod.probe("liveness", port)
        monkeypatch.setenv("REDIS_STATE_SYNC_PASSWORD_FILE", str(secrets / "learner_password"))
        publisher = StatePublisher(open_store(f"redis://learner@localhost:{port}"), "n")
        publisher.publish({"counters": {"steps": 1}}).wait(10)
        publisher.close()
        pod.overwrite("/run/secrets/health/runner_password", "some other password")
        assert not pod.probe("readiness", port)
        assert pod.probe("liveness", port)
    assert not pod.probe("liveness", port)
    assert any((tmp_path / "pod" / "data").iterdir())


def test_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a Secret as cert-manager makes it, the server is reached by rediss://."""
    binary, _ = find_server("redis")
    secrets = secret(tmp_path / "d")
    tls = tmp_path / "tls-secret"
    tls.mkdir()
    authority = Authority(tls, "ca")
    own = authority.issue("localhost")
    for source, name in ((authority.file, "ca.crt"), (own.cert, "tls.crt"), (own.key, "tls.key")):
        source.rename(tls / name)
    known = {"redis-state-sync": secrets, "redis-state-sync-tls": tls}
    pod = Pod("tls", "valkey", 0, tmp_path / "pod", known, {})
    pod.use(binary)
    # Debian's server does not know all that the init container writes; and it reads the file of
    # settings itself, where the paths are those in the container.
    pod.init()
    users = tmp_path / "pod" / "run" / "users.acl"
    users.write_text(users.read_text().replace("+client|setinfo", ""))
    conf = tmp_path / "pod" / "files" / "tls.conf"
    conf.chmod(0o600)
    place = "/etc/redis-state-sync-tls/"
    assert conf.read_text().count(place) == 3
    conf.write_text(conf.read_text().replace(place, f"{tmp_path}/pod/tls/"))
    (port,) = free_ports(1)
    with started(pod, "--tls-port", str(port)):
        pod.until_ready(port)
        assert pod.probe("liveness", port)
        monkeypatch.setenv("REDIS_STATE_SYNC_PASSWORD_FILE", str(secrets / "learner_password"))
        trust = options(ssl_ca_certs=tls / "ca.crt")
        publisher = StatePublisher(open_store(f"rediss://learner@localhost:{port}{trust}"), "n")
        publisher.publish({"counters": {"steps": 1}}).wait(10)
        publisher.close()


@pytest.mark.timeout(150)
def test_ha(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three nodes and three sentinels get ready, and a learner publishes through them."""
    secrets = secret(tmp_path / "d")
    names = [(kind, number) for kind in ("valkey", "sentinel") for number in range(3)]
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    known = {}
    for (kind, number), port in ports.items():
        service, own = ("valkey-nodes", 6379) if kind == "valkey" else ("sentinel", 26379)
        known[f"{kind}-{number}.{service}.redis-state-sync.svc:{own}"] = port
    with ExitStack() as stack:
        pods = {}
        for kind, number in names:
            folder = tmp_path / f"{kind}-{number}"
            pod = Pod("ha", kind, number, folder, {"redis-state-sync": secrets}, known)
            pod.init()
            stack.enter_context(started(pod))
            pods[kind, number] = pod
        for name, pod in pods.items():
            pod.until_ready(ports[name])
            assert pod.probe("liveness", ports[name])
        monkeypatch.setenv("REDIS_STATE_SYNC_PASSWORD_FILE", str(secrets / "learner_password"))
        sentinel = "REDIS_STATE_SYNC_SENTINEL"
        monkeypatch.setenv(f"{sentinel}_USERNAME", "client")
        monkeypatch.setenv(f"{sentinel}_PASSWORD_FILE", str(secrets / "sentinel_client_password"))
        # Which takes the users `replica` and `sentinel`, each with its password.
        password = (secrets / "sentinel_client_password").read_text()
        for number in range(3):
            sentinel_port = ports["sentinel", number]
            until(lambda at=sentinel_port: replicas_known(at, password) == 2, "two replicas")
        hosts = ",".join(f"localhost:{ports['sentinel', number]}" for number in range(3))
        publisher = StatePublisher(open_store(f"redis+sentinel://learner@{hosts}/state/0"), "n")
        publisher.publish({"counters": {"steps": 1}}).wait(20)
        publisher.close()
