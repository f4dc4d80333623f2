"""What holds for every command: where the store is, secrets, exit statuses."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tomllib

from redis_state_sync.cli.app import app
from redis_state_sync.cli.exit_codes import ExitCode
from tests.cli.conftest import Cli, published, read
from tests.contract.servers import free_port, start, valkey_binary

ROOT = Path(__file__).resolve().parents[2]
SECRET = "secret-of-a-test-1"


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command as a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "redis_state_sync.cli.main", *words],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_url_may_be_an_option(cli: Cli, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The option goes before the environment; with neither, the message names both."""
    published(url, 1)
    monkeypatch.setenv("REDIS_STATE_SYNC_URL", f"redis://127.0.0.1:{free_port()}")
    assert "team/run" in cli("list", "--url", url).stdout
    assert cli("list", "--timeout", 1, code=3).stderr.startswith("error: redis://127.0.0.1")
    monkeypatch.delenv("REDIS_STATE_SYNC_URL")
    assert "REDIS_STATE_SYNC_URL" in cli("list", code=2).stderr


@pytest.mark.parametrize("words", [("--json",), ()])
def test_a_password_in_the_url_is_refused(cli: Cli, words: tuple[str, ...]) -> None:
    """A password on the command line is not used, not shown, and the remedy is named."""
    for url in (f"redis://u:{SECRET}@localhost", f"redis://localhost?password={SECRET}"):
        result = cli("list", "--url", url, *words, code=2)
        assert SECRET not in result.output
        assert "which every process of this host can read" in result.stderr
        assert "REDIS_STATE_SYNC_PASSWORD_FILE" in result.stderr


def test_passwords_are_no_option() -> None:
    """`--password` is refused with the remedy, and what follows it is not shown."""
    for words in (("list", "--password", SECRET), (f"--password={SECRET}", "list")):
        done = run(*words)
        assert done.returncode == 2
        assert SECRET not in done.stdout + done.stderr
        assert "REDIS_STATE_SYNC_PASSWORD_FILE" in done.stderr


def test_a_password_of_the_environment(tmp_path: Path) -> None:
    """The password comes from a file or a variable; a wrong one is an error, and not shown."""
    port = free_port()
    file = tmp_path / "password"
    file.write_text(SECRET + "\n")
    url = f"redis://127.0.0.1:{port}"
    with start(valkey_binary(), port=port, password=SECRET):
        for environment in (
            {"REDIS_STATE_SYNC_PASSWORD_FILE": str(file)},
            {"REDIS_STATE_SYNC_PASSWORD": SECRET},
            {"REDIS_STATE_SYNC_URL": f"redis://:{SECRET}@127.0.0.1:{port}"},
        ):
            done = run("list", **{"REDIS_STATE_SYNC_URL": url, **environment})
            assert (done.returncode, SECRET in done.stdout + done.stderr) == (0, False), done.stderr
            assert f"no namespace at {url}" in done.stdout
        done = run("list", "--url", url, REDIS_STATE_SYNC_PASSWORD=SECRET + "x")
        assert done.returncode == 3
        assert SECRET not in done.stdout + done.stderr


def test_missing_packages_are_named(tmp_path: Path) -> None:
    """Without the extra the command says what to install."""
    code = (
        "import sys, importlib.util as u\n"
        "found = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'typer' else found(name, *a)\n"
        "from redis_state_sync.cli.main import run\n"
        "run()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "pip install 'redis-state-sync[cli]'" in done.stderr


def test_the_entry_point() -> None:
    """What pip installs as `redis-state-sync` is there."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    module, _, name = project["scripts"]["redis-state-sync"].partition(":")
    assert callable(getattr(importlib.import_module(module), name))


def test_help_and_version() -> None:
    """Each command explains itself, and its options are the same everywhere."""
    assert run("--version").stdout.startswith("redis-state-sync ")
    assert run().returncode != 0
    for command in app.registered_commands:
        assert command.name
        if command.name == "demo":  # It has its own: see test_demo.py.
            continue
        text = run(command.name, "--help", COLUMNS="200").stdout
        for option in ("--url", "--json", "--timeout"):
            assert option in text, command.name


def test_a_terminal_that_lacks_characters(url: str) -> None:
    """Where a character can not be shown another one stands for it, and nothing fails."""
    published(url, 1)
    done = run("status", "team/run", PYTHONIOENCODING="latin-1", PYTHONUTF8="0")
    assert (done.returncode, "no sign of one" in done.stdout) == (0, True), done.stderr


def test_json_is_all_there_is_on_stdout(cli: Cli, url: str) -> None:
    """With --json stdout is one JSON value, of errors as well."""
    published(url, 1)
    for words in (("list",), ("status", "team/run"), ("versions", "team/run")):
        assert read(cli(*words, "--json"))
    assert read(cli("status", "other", "--json", code=4))["error"]["category"] == "settings"


def test_the_page_lists_commands_and_statuses() -> None:
    """docs/cli.md has each command and each exit status, and no other."""
    text = (ROOT / "docs" / "cli.md").read_text()
    rows = re.findall(r"^\| `redis-state-sync (\S+?)[ `]", text, re.M)
    assert rows == [command.name for command in app.registered_commands]
    assert re.findall(r"^\| (\d+) \|", text, re.M) == [str(int(code)) for code in ExitCode]
