"""What no state server can beat: bare sockets and a bare copy."""

from __future__ import annotations

import socket
import struct
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

Address = tuple[str, int] | str  # Of TCP, or of a Unix socket.
_LENGTH = struct.Struct("<Q")


class RawServer:
    """Sends as many bytes as it is asked for.

    Args:
        largest: Most bytes that it will be asked for.
    """

    def __init__(self, largest: int) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="bench-")
        self._buffer = np.ones(largest, np.uint8)
        tcp = socket.create_server(("127.0.0.1", 0))
        path = str(Path(self._folder.name) / "socket")
        unix = socket.socket(socket.AF_UNIX)
        unix.bind(path)
        unix.listen()
        for listener in (tcp, unix):
            threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        self._addresses = tcp.getsockname(), path

    def addresses(self) -> tuple[Address, Address]:
        """TCP's and the Unix socket's."""
        return self._addresses

    def _accept(self, listener: socket.socket) -> None:
        while True:
            connection, _ = listener.accept()
            _no_delay(connection)
            threading.Thread(target=self._send, args=(connection,), daemon=True).start()

    def _send(self, connection: socket.socket) -> None:
        view = memoryview(self._buffer)
        while True:
            request = connection.recv(_LENGTH.size)
            if not request:
                return
            (wanted,) = _LENGTH.unpack(request)
            connection.sendall(view[:wanted])


class PingPong:
    """A client of our server that asks for nothing and is answered: no poll can be cheaper.

    Not of a server in Python, which is slower than ours.
    """

    def __init__(self, address: Address) -> None:
        self._socket = connect(address)

    def once(self) -> None:
        """One PING and its reply."""
        self._socket.send(b"*1\r\n$4\r\nPING\r\n")
        self._socket.recv(64)


class LimitReader:
    """Fetches by bare sockets into a buffer that is used again, and copies it.

    Args:
        addresses: Of a `RawServer` that sends: TCP's and the Unix socket's.
    """

    def __init__(self, addresses: tuple[Address, Address]) -> None:
        self._sockets = [connect(address) for address in addresses]
        self._buffer = np.zeros(0, np.uint8)
        self._copy = self._buffer

    def prepare(self, nbytes: int) -> None:
        """Touches every page, so that none is fresh when time counts."""
        self._buffer = np.ones(nbytes, np.uint8)
        self._copy = np.ones(nbytes, np.uint8)

    def receive(self, which: int) -> float:
        """Seconds for the buffer to be filled by TCP (0) or the Unix socket (1)."""
        connection = self._sockets[which]
        view = memoryview(self._buffer)
        started = time.perf_counter()
        connection.send(_LENGTH.pack(len(view)))
        while len(view):
            view = view[connection.recv_into(view) :]
        return time.perf_counter() - started

    def copy(self) -> float:
        """Seconds for one copy of the buffer."""
        started = time.perf_counter()
        np.copyto(self._copy, self._buffer)
        return time.perf_counter() - started


def connect(address: Address) -> socket.socket:
    """A bare connection."""
    connection = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET)
    connection.connect(address)
    _no_delay(connection)
    return connection


def _no_delay(connection: socket.socket) -> None:
    if connection.family == socket.AF_INET:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
