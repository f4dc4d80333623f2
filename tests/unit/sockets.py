"""Both ends of a connection: ours as a stream, the other one for the test to play the server."""

from __future__ import annotations

import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import trustme

from redis_state_sync.bare_socket import ByteStream, byte_stream

KINDS = ["tcp", "unix", "tls"]
_SMALL = 64 << 10


@dataclass
class Ends:
    """One connection."""

    stream: ByteStream
    ours: socket.socket
    peer: socket.socket


@contextmanager
def connected(kind: str) -> Iterator[Ends]:
    """A connection that holds few bytes on their way. Both ends are closed at the end."""
    ours, peer = _tcp() if kind != "unix" else socket.socketpair()
    for end in (ours, peer):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SMALL)
    if kind == "tls":
        ours, peer = _greeted(ours, peer)
    stream = byte_stream(ours)
    assert stream is not None
    with ours, peer:
        yield Ends(stream, ours, peer)


def _tcp() -> tuple[socket.socket, socket.socket]:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        ours = socket.create_connection(listener.getsockname())
        peer, _ = listener.accept()
    for end in (ours, peer):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return ours, peer


@cache
def _contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    authority = trustme.CA()
    for_us = ssl.create_default_context()
    authority.configure_trust(for_us)
    for_peer = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(for_peer)
    return for_us, for_peer


def _greeted(ours: socket.socket, peer: socket.socket) -> tuple[socket.socket, socket.socket]:
    for_us, for_peer = _contexts()
    greeted: list[socket.socket] = []
    with beside(lambda: greeted.append(for_peer.wrap_socket(peer, server_side=True))):
        ours = for_us.wrap_socket(ours, server_hostname="localhost")
    return ours, greeted[0]


@contextmanager
def beside(work: Callable[[], Any]) -> Iterator[None]:
    """Does something on another thread. A connection that ends is no error of it."""

    def run() -> None:
        try:
            work()
        except OSError:
            pass

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        thread.join(20)
        assert not thread.is_alive()


@contextmanager
def signals(handler: Callable[..., Any], every_s: float) -> Iterator[None]:
    """A signal to this, the main thread now and then."""
    before = signal.signal(signal.SIGUSR1, handler)
    enough = threading.Event()
    target = threading.get_ident()

    def send() -> None:
        while not enough.wait(every_s):
            signal.pthread_kill(target, signal.SIGUSR1)

    try:
        with beside(send):
            try:
                yield
            finally:
                enough.set()
    finally:
        signal.signal(signal.SIGUSR1, before)
