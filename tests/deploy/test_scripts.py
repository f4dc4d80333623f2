"""The shell scripts: sound, and safe in what they do with passwords."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.deploy.conftest import Boot
from tests.deploy.server import DEPLOY, NEEDED, OPTIONAL, PASSWORDS, find_tool, free_port, missing

ROOT = DEPLOY.parent
SCRIPTS = sorted(
    path for path in (*DEPLOY.rglob("*.sh"), ROOT / ".ci" / "run") if "secrets" not in path.parts
)
MORE = (*OPTIONAL, "sentinel_client", "grafana")
WORDS = {f"RSS_{role.upper()}_PASSWORD": word for role, word in PASSWORDS.items()}


def render(output: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [DEPLOY / "redis" / "render-acl.sh", output],
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_script_parses_and_is_executable(script: Path) -> None:
    """Each script can be executed, and the shell that it names can read it."""
    shell = script.read_text().split("\n", 1)[0].split("/")[-1].split()[-1]
    assert os.access(script, os.X_OK)
    subprocess.run([find_tool(shell), "-n", script], check=True)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_shellcheck_has_no_complaint(script: Path) -> None:
    """Shellcheck finds nothing in any script."""
    beside = Path(sys.executable).with_name("shellcheck")
    shellcheck = str(beside) if beside.exists() else shutil.which("shellcheck")
    if shellcheck is None:
        missing("shellcheck")
    done = subprocess.run([shellcheck, script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_users_file_holds_no_password(tmp_path: Path) -> None:
    """What is rendered holds hashes, can be read by its owner alone, and leaves no other file."""
    output = tmp_path / "users.acl"
    assert render(output, **WORDS).returncode == 0
    text = output.read_text()
    assert text.count(" #") == len(PASSWORDS)
    assert not any(word in text for word in PASSWORDS.values())
    assert output.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [output]


def test_password_may_come_from_a_file(tmp_path: Path) -> None:
    """A password in a file, with the newline that editors leave, does the same as in a variable."""
    file = tmp_path / "password"
    file.write_text(PASSWORDS["runner"] + "\n")
    from_file = {name: word for name, word in WORDS.items() if "RUNNER" not in name}
    assert render(tmp_path / "a", **WORDS).returncode == 0
    assert render(tmp_path / "b", RSS_RUNNER_PASSWORD_FILE=str(file), **from_file).returncode == 0
    assert (tmp_path / "a").read_text() == (tmp_path / "b").read_text()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"RSS_RUNNER_PASSWORD": ""}, "no password for RUNNER"),
        ({"RSS_REPLICA_PASSWORD": "hunter2"}, "for REPLICA is shorter than 16"),
        ({"RSS_RUNNER_PASSWORD": "hunter2"}, "shorter than 16"),
        ({"RSS_RUNNER_PASSWORD": "two words in one password"}, "white space"),
        ({"RSS_RUNNER_PASSWORD_FILE": "/dev/null"}, "both set"),
        ({"RSS_RUNNER_PASSWORD": "", "RSS_RUNNER_PASSWORD_FILE": "gone"}, "cannot be read: gone"),
    ],
)
def test_unusable_password_changes_nothing(
    tmp_path: Path, change: dict[str, str], message: str
) -> None:
    """A password that cannot be used is named by its role; the file in use stays as it is."""
    output = tmp_path / "users.acl"
    output.write_text("in use")
    done = render(output, **{**WORDS, **change})
    assert done.returncode != 0
    assert message in done.stderr
    assert not any(word in done.stderr for word in (*PASSWORDS.values(), "hunter2", "two words"))
    assert output.read_text() == "in use"
    assert list(tmp_path.iterdir()) == [output]


def test_users_that_not_everybody_needs(tmp_path: Path) -> None:
    """Without a password for them there is no monitor, replica or sentinel, and nobody lacks."""
    output = tmp_path / "users.acl"
    for present in ((), ("monitor",), OPTIONAL):
        words = {
            name: word
            for name, word in WORDS.items()
            if name.split("_")[1].lower() in (*NEEDED, *present)
        }
        assert render(output, **words).returncode == 0
        names = [line.split()[1] for line in output.read_text().splitlines()]
        assert names == ["default", *NEEDED, *present]
    # A file that is named and empty is a mistake.
    del words["RSS_MONITOR_PASSWORD"]
    done = render(output, **words, RSS_MONITOR_PASSWORD_FILE="/dev/null")
    assert "no password for MONITOR" in done.stderr


def copy_of_deploy(folder: Path) -> Path:
    return Path(
        shutil.copytree(DEPLOY, folder / "deploy", ignore=shutil.ignore_patterns("secrets"))
    )


def test_make_secrets_keeps_what_is_there(tmp_path: Path) -> None:
    """Running it again renders the users file anew, with the passwords of the first time."""
    compose = copy_of_deploy(tmp_path) / "compose"
    subprocess.run([compose / "make-secrets.sh", *MORE], check=True)
    secrets = compose / "secrets"
    first = {path.name: path.read_text() for path in secrets.iterdir()}
    (secrets / "users.acl").unlink()
    subprocess.run([compose / "make-secrets.sh"], check=True)
    assert {path.name: path.read_text() for path in secrets.iterdir()} == first
    roles = {*PASSWORDS, "sentinel_client", "grafana"}
    files = {"users.acl", "redis_exporter.json"}
    assert first.keys() == {f"{role}_password" for role in roles} | files
    # In the form that redis_exporter takes, for the address that it is given.
    (entry,) = json.loads(first["redis_exporter.json"]).items()
    assert entry == ("redis://monitor@valkey:6379", first["monitor_password"])
    words = {text for name, text in first.items() if name not in files}
    assert len(words) == len(roles)
    assert {len(word) for word in words} == {64}
    assert secrets.stat().st_mode & 0o777 == 0o700


def test_make_secrets_makes_what_it_is_asked_for(tmp_path: Path) -> None:
    """Without arguments there are the users that everybody needs; an unknown one is refused."""
    compose = copy_of_deploy(tmp_path) / "compose"
    done = subprocess.run(
        [compose / "make-secrets.sh", "nobody"], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "no such user: nobody" in done.stderr
    subprocess.run([compose / "make-secrets.sh"], check=True)
    found = {path.name for path in (compose / "secrets").iterdir()}
    assert found == {f"{role}_password" for role in NEEDED} | {"users.acl"}


def health(user: str, password: Path, port: int, *flags: str) -> int:
    find_tool("valkey-cli", "redis-cli")
    command = ["sh", DEPLOY / "redis" / "healthcheck.sh", *flags, user, password, str(port)]
    return subprocess.run(command, capture_output=True, check=False).returncode


def test_health_check_tells_what_a_client_would_find(boot: Boot, tmp_path: Path) -> None:
    """It passes with the right password, and fails with a wrong one and without a server."""
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    right.write_text(PASSWORDS["runner"] + "\n")
    wrong.write_text("not the runner's password\n")
    port = free_port()
    server = boot(port=port)
    assert health("runner", right, port) == 0
    assert health("runner", wrong, port) != 0
    # A server whose users file was lost lets the default user in: still the wrong password.
    server.client("root").execute_command("ACL SETUSER default on nopass +@all")
    assert health("runner", wrong, port) != 0
    # Who restarts what fails is told that it lives, as long as it answers anything.
    assert health("runner", right, port, "--alive") == 0
    assert health("runner", wrong, port, "--alive") == 0
    server.kill()
    assert health("runner", right, port) != 0
    assert health("runner", right, port, "--alive") != 0


def test_a_server_that_loads_is_alive_and_not_healthy(boot: Boot, tmp_path: Path) -> None:
    """While its data is being loaded, a server is not sent clients, and not restarted either."""
    password = tmp_path / "password"
    password.write_text(PASSWORDS["runner"])
    port = free_port()
    server = boot(port=port)
    with server.client("root").pipeline(transaction=False) as pipe:
        for number in range(4000):
            pipe.set(f"rss:{{n}}:blob:{number}", "x")
        pipe.execute()
    # What was rewritten is loaded in such a way that clients are looked at meanwhile.
    server.client("root").bgrewriteaof()
    while server.client("root").info("persistence")["aof_rewrite_in_progress"]:
        time.sleep(0.01)
    server.kill()
    slow = ("--key-load-delay", "1000", "--loading-process-events-interval-bytes", "1024")
    server.begin(*slow)
    deadline = time.monotonic() + 30
    while health("runner", password, port, "--alive") != 0:
        assert time.monotonic() < deadline
    assert health("runner", password, port) != 0
    server.client("root").config_set("key-load-delay", 0)
    while health("runner", password, port) != 0:
        assert time.monotonic() < deadline
