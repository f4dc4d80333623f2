"""What an Algorithm leaves in its driver, and on the server, however it ends: nothing of ours."""

from __future__ import annotations

import gc
import os
import tempfile
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from ray import cloudpickle
from ray.exceptions import RayTaskError
from ray.rllib.algorithms.ppo import PPOConfig

from redis_state_sync import errors
from redis_state_sync.embedded import EmbeddedServer
from redis_state_sync.rllib import with_redis_state
from redis_state_sync.rllib.learner_sync import LearnerSync
from tests.leaks.census import children


def ppo(url: str) -> Any:
    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=1, rollout_fragment_length=50)
        .training(train_batch_size_per_learner=100, minibatch_size=50, num_epochs=1)
    )
    return with_redis_state(config, url)


def ours() -> dict[str, Any]:
    """Threads, and processes that this one started: Ray starts all of its own once, before."""
    return {
        "threads": sorted(t.name for t in threading.enumerate() if "redis-state" in t.name),
        "children": sorted(children(os.getpid())),
    }


def sockets_to(port: int) -> int:
    """How many sockets of this process lead to a TCP port."""
    fds = Path("/proc/self/fd")
    own = {os.readlink(fd) for fd in fds.iterdir() if fd.is_symlink()}
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    leading = {f"socket:[{row[9]}]" for row in rows if int(row[2].split(":")[1], 16) == port}
    return len(own & leading)


def until(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def server_of(algo: Any) -> tuple[int, list[Path]]:
    """Pid and files of an Algorithm's own server."""
    server = algo.redis_state_sync._server
    return server.pid, [server.socket_path, server._folder]


def assert_gone(pid: int, files: list[Path]) -> None:
    until(lambda: not Path(f"/proc/{pid}").exists(), "the server")
    assert not [file for file in files if file.exists()]


def test_one_after_the_other(server: EmbeddedServer, ray_session: None) -> None:
    """Each of two Algorithms in one driver leaves no thread, process, socket or connection."""
    port = int(server._config.read_text().split("port ")[1].split()[0])
    client = redis.Redis(port=port)
    connections = client.info("clients")["connected_clients"]  # type: ignore[index]
    before, sockets = ours(), sockets_to(port)
    for _ in range(2):
        algo = ppo(f"redis://127.0.0.1:{port}").build_algo()
        algo.train()
        assert ours() != before
        assert sockets_to(port) > sockets
        algo.stop()
        assert ours() == before
        assert sockets_to(port) == sockets
        until(
            lambda: client.info("clients")["connected_clients"] == connections,  # type: ignore[index]
            "its connections",
        )
    client.close()


def fail(**_: Any) -> None:
    raise ZeroDivisionError("in training")


def test_an_error_in_training(ray_session: None) -> None:
    """An Algorithm whose training raises has its server until it is stopped, and then no more."""
    before = ours()
    algo = ppo("embedded://").callbacks(on_train_result=fail).build_algo()
    with pytest.raises(ZeroDivisionError, match="in training"):
        algo.train()
    pid, files = server_of(algo)
    assert Path(f"/proc/{pid}").exists()
    algo.stop()
    assert ours() == before
    assert_gone(pid, files)


def test_an_algorithm_that_is_never_stopped(ray_session: None) -> None:
    """An Algorithm that is dropped without stop() takes its thread and its server along."""
    before = ours()
    algo = ppo("embedded://").build_algo()
    algo.train()
    pid, files = server_of(algo)
    dropped = weakref.ref(algo)
    del algo
    gc.collect()
    assert dropped() is None
    assert ours() == before
    assert_gone(pid, files)


def test_an_algorithm_that_can_not_be_built(
    ray_session: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was started before a learner's first state turned out wrong is ended again."""
    before = ours()
    with tempfile.TemporaryDirectory(prefix="rss-", dir="/tmp") as folder:
        monkeypatch.setattr("tempfile.tempdir", folder)
        monkeypatch.setattr(LearnerSync, "_initial_state", lambda _: {"extra": {1, 2}})
        with pytest.raises(errors.EncodeError, match="extra"):
            ppo("embedded://").build_algo()
        assert ours() == before
        # The folder where drivers and EnvRunners meet stays, empty.
        left = [path for path in Path(folder).rglob("*") if path.name.startswith("redis-state")]
        assert [path.name for path in left] == [f"redis-state-sync-{os.getuid()}"]
        assert list(left[0].iterdir()) == []


@pytest.mark.parametrize(
    "kind",
    [errors.StaleStateError, errors.StoreTimeoutError, errors.PublishTimeoutError,
     errors.SettingsError, errors.ApplyError, errors.BlobMissingError],
)  # fmt: skip
def test_errors_of_actors(kind: type[Exception]) -> None:
    """An error that is raised in an EnvRunner can be caught in the driver by its own class: C91."""
    sent = RayTaskError("sample", "a traceback", kind("what it was about"))
    received = cloudpickle.loads(cloudpickle.dumps(sent)).as_instanceof_cause()
    assert isinstance(received, kind)
    assert isinstance(received, RayTaskError)
    again = cloudpickle.loads(cloudpickle.dumps(received))
    assert str(again.cause) == str(received.cause) == "what it was about"
