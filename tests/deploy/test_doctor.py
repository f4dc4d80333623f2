"""`redis-state-sync doctor` on the profiles: what we ship is sound by our own judgement."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from redis_state_sync.cli.app import app
from tests.deploy.conftest import Boot
from tests.deploy.profiles import path_of
from tests.deploy.server import PASSWORDS, Server

PROFILES: dict[str, list[str]] = {
    "durable": [],
    "ephemeral": ["ephemeral.conf"],
    "node": ["replica.conf"],
}


def doctor(server: Server, user: str, *words: str) -> dict[str, tuple[str, str]]:
    """Name of each finding -> its level and text."""
    variables = {
        "REDIS_STATE_SYNC_URL": f"unix://{user}@{server.socket}",
        "REDIS_STATE_SYNC_PASSWORD": PASSWORDS.get(user, user),
    }
    done = CliRunner(env=variables).invoke(app, ["doctor", "--json", *words])
    assert done.exit_code in (0, 1), done.output
    findings: list[dict[str, Any]] = json.loads(done.stdout)["findings"]
    assert (done.exit_code == 1) == any(found["level"] == "error" for found in findings)
    return {found["name"]: (found["level"], found["text"]) for found in findings}


@pytest.mark.parametrize("profile", PROFILES)
def test_nothing_is_found_on_a_profile(boot: Boot, profile: str) -> None:
    """Asked as one who may do everything, doctor finds neither error nor warning nor note."""
    server = boot(additions=[path_of(name) for name in PROFILES[profile]])
    assert doctor(server, "root") == {}


def test_pins_belong_on_the_durable_profile(boot: Boot) -> None:
    """The ephemeral profile is told apart by doctor as soon as somebody pins a version there."""
    server = boot(additions=[path_of("ephemeral.conf")])
    server.client("root").hset("rss:{n}:pins", "best", "7-1")
    assert {name: level for name, (level, _) in doctor(server, "root").items()} == {
        "persistence": "warning"
    }


@pytest.mark.parametrize("role", ["runner", "learner", "operator"])
def test_each_role_has_its_rights(boot: Boot, role: str) -> None:
    """As each of our users, doctor finds no right lacking, and says what it may not look at."""
    server = boot()
    findings = doctor(server, role, "--role", role)
    assert {name: level for name, (level, _) in findings.items()} == {"not looked at": "note"}
    _, text = findings["not looked at"]
    assert ("INFO" in text) == (role != "operator")
    assert "CONFIG GET" in text


def test_a_role_in_place_of_another(boot: Boot) -> None:
    """A runner who is to publish is found out, with the commands that are lacking."""
    findings = doctor(boot(), "runner", "--role", "learner")
    level, text = findings["rights"]
    assert level == "error"
    assert "XADD" in text
