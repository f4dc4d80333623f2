"""Completion in the shell: of namespaces, pins and versions of a real server."""

from __future__ import annotations

import logging
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from redis_state_sync import History, open_store
from redis_state_sync.cli import completion
from redis_state_sync.testing import skip_or_fail
from tests.cli.conftest import published
from tests.contract.servers import free_port

SECRET = "secret-of-a-test-2"
SHELLS = ("bash", "zsh", "fish")


def complete(shell: str, line: str, **environment: str) -> list[str]:
    """What a shell gets for a line, by the protocol of its completion; nothing but words."""
    words = line.split(" ")
    asked = {
        "_REDIS_STATE_SYNC_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
        "_TYPER_COMPLETE_ARGS": line,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    done = subprocess.run(
        [sys.executable, "-m", "redis_state_sync.cli.main"],
        env={**os.environ, **asked, **environment},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.stderr == ""
    if shell == "zsh":
        offered = re.findall(r'"((?:[^"]|"")*)"(?::"[^"]*")?\s*', done.stdout)
        return [word.replace("\\\\:", ":") for word in offered if word]
    return [line.partition("\t")[0] for line in done.stdout.splitlines() if line]


@pytest.mark.parametrize("shell", SHELLS)
def test_names_that_are_there(shell: str, url: str) -> None:
    """Each shell is offered namespaces, pins, and versions of the namespace, that begin so."""
    versions = published(url, 1, 2, namespace="team/run")
    published(url, 1, namespace="other")
    history = History(open_store(url), "team/run")
    for name in ("best", "league/00012", "a$(reboot)"):
        history.pin(name, versions[0])
    assert complete(shell, "redis-state-sync status ") == ["other", "team/run"]
    assert complete(shell, "redis-state-sync status te") == ["team/run"]
    assert complete(shell, "redis-state-sync doctor te") == ["team/run"]
    # A name that a shell would run is offered to none.
    assert complete(shell, "redis-state-sync unpin team/run ") == ["best", "league/00012"]
    assert complete(shell, "redis-state-sync pin team/run be") == ["best"]
    newest_first = [str(version) for version in versions[::-1]]
    assert complete(shell, "redis-state-sync diff team/run ") == [
        "newest", "best", "league/00012", *newest_first,
    ]  # fmt: skip
    assert complete(shell, "redis-state-sync rollback team/run le") == ["league/00012"]


@pytest.mark.parametrize("shell", SHELLS)
def test_the_store_of_an_option(shell: str, url: str) -> None:
    """The store is that of --url, if it was given by then."""
    published(url, 1)
    line = f"redis-state-sync status --url {url} te"
    assert complete(shell, line, REDIS_STATE_SYNC_URL="memory://nothing") == ["team/run"]


def test_without_an_answer() -> None:
    """Whatever is wrong with the store, nothing is offered and nothing said, no secret either."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for shell, url, line in (
            ("bash", f"redis://u:{SECRET}@127.0.0.1:{free_port()}", "status te"),
            ("zsh", f"redis://u:{SECRET}@127.0.0.1:{silent.getsockname()[1]}", "unpin te b"),
            ("fish", f"redis://u:{SECRET}@no-such-host.invalid", "diff te b"),
            ("bash", f"nonsense://u:{SECRET}@x", "status te"),
            ("zsh", "", "status te"),
            ("fish", "redis://h", f"status --url redis://u:{SECRET}@h te"),
        ):
            assert complete(shell, f"redis-state-sync {line}", REDIS_STATE_SYNC_URL=url) == []


@pytest.fixture
def logged() -> Iterator[None]:
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.usefixtures("logged")
def test_nobody_waits_for_a_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that does not answer at all does not hold the shell up."""
    answered = threading.Event()

    def never(_settings: object) -> None:
        answered.wait()
        raise OSError

    monkeypatch.setattr(completion, "store_from", never)
    context = SimpleNamespace(params={"url": "redis://h", "namespace": None})
    assert completion.namespaces(context) == []
    assert not answered.is_set()
    answered.set()


def test_in_bash(url: str, tmp_path: Path) -> None:
    """The script that --show-completion prints completes a line in a real bash."""
    bash = shutil.which("bash")
    if bash is None:
        skip_or_fail("needs bash on PATH")
    published(url, 1)
    command = tmp_path / "redis-state-sync"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m redis_state_sync.cli.main "$@"\n')
    command.chmod(0o755)
    script = (
        'eval "$(_REDIS_STATE_SYNC_COMPLETE=source_bash redis-state-sync)"\n'
        "COMP_WORDS=(redis-state-sync status te); COMP_CWORD=2\n"
        'function=$(complete -p redis-state-sync | sed "s/.*-F \\([^ ]*\\).*/\\1/")\n'
        "$function redis-state-sync te status\n"
        'printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        [str(bash), "--norc", "-c", script],
        env=environment, capture_output=True, text=True, timeout=50, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("team/run\n", "")
