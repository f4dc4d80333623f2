"""A process that ends without closing anything: promptly, quietly, and with all that it had."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from redis_state_sync import StateSubscriber, open_store
from redis_state_sync.embedded import EmbeddedServer
from tests.leaks import programs

# Seconds on an idle machine; this one is shared.
pytestmark = pytest.mark.timeout(300)

WAIT = 30.0
# Far above the two seconds that a publisher may take: the machine is shared.
MUCH_TOO_LONG = 20.0


@pytest.fixture
def folder() -> Iterator[Path]:
    """For temporary files; short, as the path of a socket has to be."""
    with tempfile.TemporaryDirectory(prefix="rss-", dir="/tmp") as name:
        yield Path(name)


def until(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def number_at(url: str) -> int | None:
    """What a reader that comes later gets; the whole of it is looked at."""
    reader = StateSubscriber(open_store(url), "n")
    snapshot = reader.fetch(timeout=WAIT)
    reader.close()
    return None if snapshot is None else {name: snapshot[name] for name in snapshot}["number"]


def test_what_waits_is_stored(redis_state_server: EmbeddedServer) -> None:
    """A state published just before the interpreter exits is stored."""
    done = programs.run("endings", "small", redis_state_server.url)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert number_at(redis_state_server.url) == 1


def test_exit_in_the_middle_of_a_publish(redis_state_server: EmbeddedServer) -> None:
    """A large state is stored or not when its learner exits at once, and never a part: C16."""
    done = programs.run("endings", "large", redis_state_server.url)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert number_at(redis_state_server.url) in (1, 2)


@pytest.mark.parametrize("kind", ["later", "reading"])
@pytest.mark.parametrize("harm", [signal.SIGKILL, signal.SIGSTOP])
def test_exit_without_a_server(
    redis_state_server: EmbeddedServer, kind: str, harm: signal.Signals
) -> None:
    """A server that is gone or hangs delays no exit and causes no traceback: C32."""
    server = redis_state_server
    process = programs.start("endings", kind, server.url)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    assert server.pid is not None
    pid = server.pid
    try:
        os.kill(pid, harm)
        until(lambda: harm == signal.SIGSTOP or server.pid is None, "the server is dead")
        started = time.monotonic()
        out, error = process.communicate("go\n", timeout=WAIT)
    finally:
        if harm == signal.SIGSTOP:
            os.kill(pid, signal.SIGCONT)
    assert time.monotonic() - started < MUCH_TOO_LONG
    assert (process.returncode, out) == (0, "")
    # A warning of each that failed, at most: publishing, tidying up.
    assert len(error.splitlines()) <= 2, error
    assert all(" failed, " in line for line in error.splitlines()), error
    if harm == signal.SIGSTOP and kind == "later":
        # What it had sent is read when the server goes on: the whole version or none.
        assert number_at(server.url) in (1, 2)


def test_an_error_of_the_callers_own(redis_state_server: EmbeddedServer) -> None:
    """An error in a reader's callback ends the process with that error alone."""
    done = programs.run("endings", "callback", redis_state_server.url)
    assert done.returncode == 1
    assert done.stderr.count("Traceback") == 1
    assert done.stderr.splitlines()[-1] == "ZeroDivisionError: division by zero"


def test_a_server_of_its_own_goes_too(folder: Path) -> None:
    """Learner, reader and server end in that order, without a word, and leave no file."""
    process = programs.start("endings", "own_server", "-", TMPDIR=str(folder))
    server = started(process)
    out, error = process.communicate("go\n", timeout=WAIT)
    assert (process.returncode, out, error) == (0, "", "")
    assert not alive(server)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_signals_to_the_driver(number: signal.Signals, folder: Path) -> None:
    """However a driver is ended, its server and its files go with it."""
    process = programs.start("endings", "own_server", "-", TMPDIR=str(folder))
    server = started(process)
    process.send_signal(number)
    _, error = process.communicate(timeout=WAIT)
    assert process.returncode == -number
    tracebacks = 1 if number == signal.SIGINT else 0
    assert error.count("Traceback") == tracebacks, error
    until(lambda: not alive(server) and not list(folder.iterdir()), "the server and its files")


def test_a_constructor_that_raises(folder: Path) -> None:
    """A learner that is not let in ends with one error, and its own server goes: C33."""
    done = programs.run("endings", "wrong_password", "-", TMPDIR=str(folder))
    assert done.returncode == 1
    assert "StoreAuthError" in done.stderr.splitlines()[-1]
    assert "Exception ignored" not in done.stderr
    assert list(folder.iterdir()) == []


def started(process: subprocess.Popen[str]) -> int:
    """Waits for it; returns the pid of its server."""
    assert process.stdout is not None
    pid, server = map(int, process.stdout.readline().split())
    assert pid == process.pid
    return server


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
