"""TLS with a real server: who is let in, and what the others are told."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from redis_state_sync import SettingsError, StatePublisher, errors, open_store
from tests.contract.conftest import WAIT, said
from tests.contract.servers import (
    Authority,
    Certificate,
    free_port,
    options,
    redis_binary,
    start,
    tls_server,
)

SECRET = "hunter2-hunter2"
CONNECT_S = 1.0


@dataclass(frozen=True)
class World:
    """Servers as ``host:port``, and the files to reach them with."""

    authority: Authority
    stranger: Authority
    client: Certificate
    good: str
    other_host: str
    expired: str
    mutual: str
    plain: str

    def trust(self, **more: object) -> str:
        """URL options with the right CA."""
        return options(ssl_ca_certs=self.authority.file, **more)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    authority = Authority(tmp_path_factory.mktemp("tls"))
    own = authority.issue("127.0.0.1", "localhost")
    plain = free_port()
    with ExitStack() as stack:

        def serve(certificate: Certificate, clients: str = "no") -> str:
            return stack.enter_context(tls_server(authority, certificate, clients=clients))

        stack.enter_context(start(redis_binary(), port=plain))
        yield World(
            authority,
            Authority(tmp_path_factory.mktemp("stranger"), "stranger"),
            authority.issue("runner@example.org"),
            good=serve(own),
            other_host=serve(authority.issue("redis.example.org")),
            expired=serve(authority.issue("127.0.0.1", expired=True)),
            mutual=serve(own, "yes"),
            plain=f"127.0.0.1:{plain}",
        )


@pytest.fixture(params=[2, 3], ids=["resp2", "resp3"])
def protocol(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def pair(certificate: Certificate) -> dict[str, object]:
    return {"ssl_certfile": certificate.cert, "ssl_keyfile": certificate.key}


WELCOME: dict[str, Callable[[World], str]] = {
    "by-address": lambda w: f"rediss://{w.good}{w.trust()}",
    "by-name": lambda w: f"valkeys://{w.good.replace('127.0.0.1', 'localhost')}{w.trust()}",
    "other-host-unchecked": lambda w: (
        f"rediss://{w.other_host}{w.trust(ssl_check_hostname='false')}"
    ),
    "unverified": lambda w: f"rediss://{w.expired}{options(ssl_cert_reqs='none')}",
    "optional": lambda w: f"rediss://{w.good}{w.trust(ssl_cert_reqs='optional')}",
    "mutual": lambda w: f"rediss://{w.mutual}{w.trust(**pair(w.client))}",
}


@pytest.mark.parametrize("name", WELCOME)
def test_let_in(world: World, name: str, protocol: int) -> None:
    """Right CA and name, unverified on request, and a client certificate where asked: C82."""
    store = open_store(f"{WELCOME[name](world)}&protocol={protocol}")
    assert store.time_ms(timeout=WAIT) > 0
    assert store.server_facts(timeout=WAIT).startswith("Redis ")
    store.close()


Refused = tuple[Callable[[World], str], type[errors.StoreError], str]
REFUSED: dict[str, Refused] = {
    "wrong-ca": (
        lambda w: f"rediss://{w.good}{options(ssl_ca_certs=w.stranger.file)}",
        errors.StoreTLSError,
        "ssl_ca_certs must name",
    ),
    "no-ca": (lambda w: f"rediss://{w.good}", errors.StoreTLSError, "ssl_ca_certs must name"),
    # Python's CERT_OPTIONAL verifies a server as CERT_REQUIRED does; so must the name be checked.
    "optional-wrong-ca": (
        lambda w: (
            f"rediss://{w.good}{options(ssl_ca_certs=w.stranger.file, ssl_cert_reqs='optional')}"
        ),
        errors.StoreTLSError,
        "ssl_ca_certs must name",
    ),
    "optional-wrong-host": (
        lambda w: f"rediss://{w.other_host}{w.trust(ssl_cert_reqs='optional')}",
        errors.StoreTLSError,
        "use a name or address",
    ),
    "wrong-host": (
        lambda w: f"rediss://{w.other_host}{w.trust()}",
        errors.StoreTLSError,
        "use a name or address",
    ),
    "expired": (
        lambda w: f"rediss://{w.expired}{w.trust()}",
        errors.StoreTLSError,
        "needs a new certificate",
    ),
    # Not always the alert is read: the server may have closed before the first command was sent.
    "mutual-without": (
        lambda w: f"rediss://{w.mutual}{w.trust()}",
        errors.StoreUnavailableError,
        "client certificate.*ssl_certfile",
    ),
    "mutual-stranger": (
        lambda w: f"rediss://{w.mutual}{w.trust(**pair(w.stranger.issue('x@example.org')))}",
        errors.StoreUnavailableError,
        "client certificate.*ssl_certfile",
    ),
    "certificate-without-key": (
        lambda w: f"rediss://{w.mutual}{w.trust(ssl_certfile=w.client.cert)}",
        errors.StoreTLSError,
        "PEM files that fit each other",
    ),
    "tls-to-a-plain-port": (
        lambda w: f"rediss://{w.plain}{w.trust()}",
        errors.StoreTimeoutError,
        "does the port speak TLS",
    ),
    "plain-to-a-tls-port": (
        lambda w: f"redis://{w.good}",
        errors.StoreError,
        "speak TLS.*rediss://",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(world: World, name: str, protocol: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every other way is refused in time, with a remedy and without the password: C82, C94."""
    monkeypatch.setenv("REDIS_STATE_SYNC_PASSWORD", SECRET)
    make, kind, remedy = REFUSED[name]
    url = make(world)
    store = open_store(
        f"{url}{'&' if '?' in url else '?'}protocol={protocol}", connect_timeout_s=CONNECT_S
    )
    started = time.monotonic()
    with pytest.raises(kind, match=f"(?s)127.0.0.1.*{remedy}") as caught:
        StatePublisher(store, "n", connect_timeout_s=CONNECT_S)
    # Far above the limit, and far below what redis-py's own retries would take.
    assert time.monotonic() - started < CONNECT_S + 3.0
    assert SECRET not in said(caught.value)
    store.close()


def test_a_file_that_is_not_there(world: World, tmp_path: Path) -> None:
    """A file of certificates that can not be read is named, together with its option: C82."""
    for option in ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile"):
        given = {"ssl_ca_certs": world.authority.file, **pair(world.client)}
        given[option] = tmp_path / "nowhere.pem"
        store = open_store(f"rediss://{world.mutual}{options(**given)}")
        with pytest.raises(SettingsError, match=rf"{option}.*nowhere\.pem"):
            store.time_ms(timeout=WAIT)
