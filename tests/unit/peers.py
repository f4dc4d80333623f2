"""TCP peers that are not (good) Redis servers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import hiredis

Handler = Callable[[socket.socket], None]


def silent(connection: socket.socket) -> None:
    """Reads everything and never answers."""
    while connection.recv(65536):
        pass


def saying(*replies: bytes) -> Handler:
    """Answers each time that something arrives: the last reply again and again."""

    def handler(connection: socket.socket) -> None:
        queue = list(replies)
        while connection.recv(65536):
            connection.sendall(queue.pop(0) if len(queue) > 1 else queue[0])

    return handler


def answering(reply: Callable[[list[bytes]], bytes]) -> Handler:
    """Reads commands and answers each with what the function says; ends with an empty answer."""

    def handler(connection: socket.socket) -> None:
        reader = hiredis.Reader()
        while data := connection.recv(65536):
            reader.feed(data)
            while (command := reader.gets()) is not False:
                answer = reply(command)
                if not answer:
                    return
                connection.sendall(answer)

    return handler


def slamming(connection: socket.socket) -> None:
    """Closes at once."""


@contextmanager
def peer(handler: Handler) -> Iterator[str]:
    """Listens on a free loopback port; yields the store URL."""
    listener = socket.create_server(("127.0.0.1", 0))
    connections: list[socket.socket] = []

    def serve(connection: socket.socket) -> None:
        with connection:
            try:
                handler(connection)
            except OSError:
                pass
        connections.remove(connection)

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connections.append(connection)
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield f"redis://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for connection in list(connections):
            connection.close()
        thread.join(5)
