"""The library under the users of `deploy/`: their rights are enough, and no more than enough."""

from __future__ import annotations

import contextlib
import time

import numpy as np
import pytest

from redis_state_sync import (
    History,
    Snapshot,
    SnapshotPool,
    StatePublisher,
    StateSubscriber,
    StoreError,
    open_store,
    roll_back,
)
from redis_state_sync.errors import StorePermissionError
from redis_state_sync.keys import Keys
from redis_state_sync.store import Store
from tests.deploy.conftest import Boot
from tests.deploy.server import PASSWORDS, Server


@pytest.fixture(autouse=True)
def passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    for role, password in PASSWORDS.items():
        monkeypatch.setenv(f"PASSWORD_OF_{role}", password)


def store(server: Server, user: str, protocol: int = 2) -> Store:
    url = f"unix://{user}@{server.socket}?protocol={protocol}"
    return open_store(url, password_env=f"PASSWORD_OF_{user}")


@pytest.mark.parametrize("protocol", [2, 3])
def test_library_needs_no_right_that_its_role_lacks(boot: Boot, protocol: int) -> None:
    """Taking over, publishing, retention, heartbeat, fetching and noting are not refused: C83."""
    server = boot()
    got: list[Snapshot] = []
    for _ in range(2):
        learner, runner = store(server, "learner", protocol), store(server, "runner", protocol)
        server.client("root").hset("rss:{n}:readers", "gone", "1-1 5")
        publisher = StatePublisher(learner, "n", history=2, heartbeat_s=0.05)
        with contextlib.closing(publisher):
            reader = StateSubscriber(runner, "n", name="r", poll_timeout_s=5)
            for number in range(5):
                publisher.publish({"rl_module/p": {"w": np.full(3, number)}}).wait(10)
                assert reader.refresh(got.append)
            # The heartbeat forgets who has not been heard of for long.
            deadline = time.monotonic() + 10
            while server.client("root").hkeys("rss:{n}:readers") != [b"r"]:
                assert time.monotonic() < deadline
                time.sleep(0.02)
            # It notices that everything went away, and brings it back.
            root = server.client("root")
            root.delete(*root.keys("rss:*"))
            reader.forget()
            assert reader.wait_for(got.append, timeout=10)
    assert int(got[-1]["rl_module/p"]["w"][0]) == 4
    assert server.client("root").hkeys("rss:{n}:readers") == [b"r"]
    assert server.client("root").acl_log() == []


@pytest.mark.parametrize("user", ["runner", "operator"])
def test_only_a_learner_can_publish(boot: Boot, user: str) -> None:
    """A publisher with another role's password fails at start, and leaves nothing behind."""
    server = boot()
    with pytest.raises(StoreError, match="grant the user"):
        StatePublisher(store(server, user), "n")
    assert server.client("root").dbsize() == 0


def test_operator_pins_and_learner_rolls_back(boot: Boot) -> None:
    """Pinning takes no more than an operator's rights, rolling back no more than a learner's."""
    server = boot()
    operator = History(store(server, "operator"), "n")
    with contextlib.closing(StatePublisher(store(server, "learner"), "n", history=1)) as publisher:
        for number in range(5):
            publisher.publish({"rl_module/p": {"w": np.full(3, number)}}).wait(10)
            operator.pin(f"p{number % 2}")
            publisher.flush(10)
    assert [int(operator.fetch(f"p{n}")["rl_module/p"]["w"][0]) for n in (0, 1)] == [4, 3]
    assert operator.store.namespaces(timeout=5) == ["n"]
    operator.unpin("p0")
    assert server.client("root").acl_log() == []
    with pytest.raises(StorePermissionError, match="grant the user"):
        roll_back(operator, "p1", watch_s=0.1)
    assert set(operator.pins()) == {"p1"}
    server.client("root").execute_command("ACL LOG RESET")
    roll_back(History(store(server, "learner"), "n"), "p1", watch_s=0.1)
    assert int(operator.fetch("newest")["rl_module/p"]["w"][0]) == 3
    assert server.client("root").acl_log() == []
    reader = History(store(server, "runner"), "n")
    for call in (lambda: reader.pin("x"), lambda: reader.unpin("p1")):
        with pytest.raises(StorePermissionError):
            call()
    assert set(operator.pins()) == {"p1"}


def test_a_runner_fetches_by_pin(boot: Boot) -> None:
    """A league's EnvRunners need no more than a runner's rights to see pins and fetch them."""
    server = boot()
    learner = store(server, "learner")
    with contextlib.closing(StatePublisher(learner, "n", history=1)) as publisher:
        for number in range(3):
            publisher.publish({"rl_module/p": {"w": np.full(3, number)}}).wait(10)
            History(learner, "n").pin(f"league/{number}")
            publisher.flush(10)
    pool = SnapshotPool(History(store(server, "runner"), "n"), "league/")
    assert pool.names() == [f"league/{number}" for number in range(3)]
    for number, name in enumerate(pool.names()):
        assert int(pool.get(name)["rl_module/p"]["w"][0]) == number
    assert server.client("root").acl_log() == []


def test_operator_sees_and_removes_a_namespace(boot: Boot) -> None:
    """An operator reads the pins and readers of a namespace, and can remove all its keys."""
    server = boot()
    publisher = StatePublisher(store(server, "learner"), "n")
    with contextlib.closing(publisher):
        publisher.publish({"rl_module/p": {"w": np.zeros(3)}}).wait(10)
    operator = server.client("operator")
    assert store(server, "operator").newest(Keys("n"), timeout=5)
    assert store(server, "operator").pins(Keys("n"), timeout=5) == {}
    keys = list(operator.scan_iter("rss:{n}:*"))
    assert operator.unlink(*keys) == len(keys) > 1
    assert server.client("root").dbsize() == 0
