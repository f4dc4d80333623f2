"""Passwords are changed while a job runs, as docs/deployment.md says."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import numpy as np
import pytest

from redis_state_sync import StatePublisher, StateSubscriber, open_store
from redis_state_sync.errors import StoreError
from tests.deploy.conftest import Boot
from tests.deploy.server import PASSWORDS, find_server, render_acl

NEW = "another-password-of-a-test"


def test_a_password_is_rotated(
    boot: Boot, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a new password in the file and in the users file, a restart is all that a job sees.

    Whoever has the old password is refused from then on.
    """
    server, (_, version) = boot(), find_server(kind)
    file = tmp_path / "learner_password"
    file.write_text(PASSWORDS["learner"])
    url = f"unix://learner@{server.socket}"
    monkeypatch.setenv("REDIS_STATE_SYNC_PASSWORD_FILE", str(file))
    with (
        contextlib.closing(StatePublisher(open_store(url), "n", heartbeat_s=0.1)) as publisher,
        contextlib.closing(StateSubscriber(open_store(url), "n", poll_timeout_s=5)) as reader,
    ):
        publisher.publish({"rl_module/p": {"w": np.zeros(3)}}).wait(10)
        before = reader.fetch(timeout=10)
        file.write_text(NEW)
        with monkeypatch.context() as patch:
            patch.setitem(PASSWORDS, "learner", NEW)
            render_acl(tmp_path / "users.acl", version)
        server.kill()
        server.start()
        handle = publisher.publish({"rl_module/p": {"w": np.ones(3)}})
        after = handle.wait(30)
        got = []
        deadline = time.monotonic() + 30
        while not reader.refresh(got.append):
            assert time.monotonic() < deadline
        assert before is not None
        assert before.version < after <= got[-1].version
    file.write_text(PASSWORDS["learner"])
    with pytest.raises(StoreError, match="password"):
        StatePublisher(open_store(url), "n")
