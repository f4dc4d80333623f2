"""The proxy does to the bytes what it says it does."""

from __future__ import annotations

import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from redis_state_sync.embedded import short_temp_dir
from tests.chaos.proxy import Proxy, Rules
from tests.chaos.server import steady_port

WAIT = 20.0


class Echo(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        while data := self.request.recv(65536):
            self.request.sendall(data)


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[Proxy]:
    """A proxy to a server that says what it is told."""
    path = short_temp_dir() / f"echo-{steady_port()}.sock"
    with socketserver.ThreadingUnixStreamServer(str(path), Echo) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        made = Proxy(str(path), steady_port())
        yield made
        made.close()
        server.shutdown()
        thread.join()
    path.unlink()


def connect(proxy: Proxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=WAIT)


def echo(client: socket.socket, data: bytes) -> bytes:
    """What comes back, up to as many bytes."""
    client.sendall(data)
    return read(client, len(data))


def read(client: socket.socket, size: int) -> bytes:
    got = b""
    while len(got) < size:
        part = client.recv(size - len(got))
        if not part:
            break
        got += part
    return got


def hears_nothing(client: socket.socket) -> bool:
    client.settimeout(0.2)
    try:
        client.recv(1)
    except TimeoutError:
        return True
    finally:
        client.settimeout(WAIT)
    return False


def test_bytes_go_through(proxy: Proxy) -> None:
    """Without rules, all bytes arrive, unchanged, in both directions."""
    data = bytes(range(256)) * 4000
    with connect(proxy) as client:
        sender = threading.Thread(target=client.sendall, args=(data,))
        sender.start()
        assert read(client, len(data)) == data
        sender.join()


@pytest.mark.parametrize("way", ["requests", "replies"])
def test_freeze(proxy: Proxy, way: str) -> None:
    """Frozen bytes arrive when it is over, and not before."""
    with connect(proxy) as client:
        assert echo(client, b"one") == b"one"
        proxy.set(way, Rules(freeze=True))  # type: ignore[arg-type]
        client.sendall(b"two")
        assert hears_nothing(client)
        proxy.set(way, Rules())  # type: ignore[arg-type]
        assert read(client, 3) == b"two"


def test_freeze_after(proxy: Proxy) -> None:
    """So many chunks still arrive."""
    proxy.set("replies", Rules(freeze_after=2))
    with connect(proxy) as client:
        assert echo(client, b"one") == b"one"
        assert echo(client, b"two") == b"two"
        client.sendall(b"three")
        assert hears_nothing(client)


def test_bury_after(proxy: Proxy) -> None:
    """One connection goes silent with its third chunk; another one does not."""
    proxy.set("replies", Rules(bury_after=2))
    with connect(proxy) as client, connect(proxy) as other:
        assert echo(client, b"one") == b"one"
        assert echo(client, b"two") == b"two"
        client.sendall(b"three")
        assert hears_nothing(client)
        assert echo(other, b"four") == b"four"
        assert hears_nothing(client)


def test_delay(proxy: Proxy) -> None:
    """Delayed bytes are late, and a fast line stays fast."""
    proxy.set("replies", Rules(delay_s=0.3))
    with connect(proxy) as client:
        started = time.monotonic()
        client.sendall(b"x" * 10)
        assert client.recv(1) == b"x"
        assert 0.29 < time.monotonic() - started < WAIT / 2
        assert read(client, 9) == b"x" * 9


def test_dribble(proxy: Proxy) -> None:
    """A byte at a time, with a pause after each."""
    proxy.set("replies", Rules(dribble=(1, 0.02)))
    with connect(proxy) as client:
        started = time.monotonic()
        assert echo(client, b"slowly now") == b"slowly now"
        assert time.monotonic() - started > 0.18


@pytest.mark.parametrize("by", ["reset", "close"])
def test_cut(proxy: Proxy, by: str) -> None:
    """A connection ends after so many bytes, and so does the next one."""
    proxy.set("replies", Rules(cut_after=5, cut_by=by))  # type: ignore[arg-type]
    for _ in range(2):
        with connect(proxy) as client:
            client.sendall(b"0123456789")
            got = b""
            try:
                while part := client.recv(100):
                    got += part
                assert by == "close"
            except ConnectionResetError:
                assert by == "reset"
            # A reset may overtake what came before it.
            assert got == b"01234" or (by == "reset" and got == b"")
    assert proxy.counts["cut"] == 2


def test_flip(proxy: Proxy) -> None:
    """About as many bits as asked for are flipped, none before the first place, others arrive."""
    proxy.set("replies", Rules(flip=(100, 50), seed=1))
    with connect(proxy) as client:
        got = echo(client, b"x" * 1000)
    assert got[:100] == b"x" * 100
    changed = [byte for byte in got if byte != ord("x")]
    assert 5 < len(changed) < 100
    assert all((byte ^ ord("x")).bit_count() == 1 for byte in changed)
    assert proxy.counts["flips"] == len(changed)


def test_refuse(proxy: Proxy) -> None:
    """Nobody listens, until it listens again at the same port; connections stay."""
    with connect(proxy) as before:
        assert echo(before, b"one") == b"one"
        proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            connect(proxy)
        assert echo(before, b"two") == b"two"
    proxy.listen()
    with connect(proxy) as client:
        assert echo(client, b"three") == b"three"


def test_silent(proxy: Proxy) -> None:
    """Connections are accepted and hear nothing, until it is over."""
    proxy.silent = True
    with connect(proxy) as client:
        client.sendall(b"hello")
        assert hears_nothing(client)
        proxy.silent = False
        assert read(client, 5) == b"hello"


def test_break_off(proxy: Proxy) -> None:
    """All connections are reset at once."""
    with connect(proxy) as one, connect(proxy) as two:
        assert echo(one, b"1") + echo(two, b"2") == b"12"
        assert proxy.break_off() == 2
        for client in (one, two):
            with pytest.raises(ConnectionResetError):
                client.recv(1)


def test_bury(proxy: Proxy) -> None:
    """Connections that are there go silent for ever; new ones work."""
    with connect(proxy) as old:
        assert echo(old, b"1") == b"1"
        assert proxy.bury() == 1
        old.sendall(b"2")
        assert hears_nothing(old)
        with connect(proxy) as new:
            assert echo(new, b"3") == b"3"
        assert hears_nothing(old)


def test_the_target_is_another(proxy: Proxy, tmp_path: Path) -> None:
    """New connections end at once while nobody is where they lead to."""
    proxy.target = str(tmp_path / "nobody")
    with connect(proxy) as client:
        assert client.recv(1) == b""
