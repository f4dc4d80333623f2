"""Asking real sentinels: passwords, wrong names, and sentinels that do not answer."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from redis_state_sync import StatePublisher, StateSubscriber, errors, open_store
from tests.contract.conftest import WAIT, said
from tests.contract.group import DATA_PASSWORD, SENTINEL_PASSWORD, SERVICE, Group, group, until
from tests.contract.servers import free_port, redis_binary, start
from tests.contract.traffic import number_in, state
from tests.unit.peers import peer, silent

PASSWORD_ENV = "REDIS_STATE_SYNC_PASSWORD"
SENTINEL_ENV = "REDIS_STATE_SYNC_SENTINEL_PASSWORD"


@pytest.fixture(autouse=True)
def passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSWORD_ENV, DATA_PASSWORD)
    monkeypatch.setenv(SENTINEL_ENV, SENTINEL_PASSWORD)


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """Servers that nobody harms."""
    with group(tmp_path_factory.mktemp("calm")) as made:
        yield made


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("source", ["variables", "files", "user"])
def test_passwords(
    calm: Group, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: str, protocol: int
) -> None:
    """Data nodes and sentinels get a password each, from variable, file or ACL user: C83, C94."""
    if source == "files":
        for name, password in ((PASSWORD_ENV, DATA_PASSWORD), (SENTINEL_ENV, SENTINEL_PASSWORD)):
            monkeypatch.delenv(name)
            (tmp_path / name).write_text(password + "\n")
            monkeypatch.setenv(f"{name}_FILE", str(tmp_path / name))
    elif source == "user":
        for port in calm.sentinels:
            # As docs/configuration.md says: this is all that it takes.
            rule = ("ACL", "SETUSER", "app", "on", ">app-password", "+sentinel|masters")
            calm.client(port).execute_command(*rule)
        monkeypatch.setenv("REDIS_STATE_SYNC_SENTINEL_USERNAME", "app")
        monkeypatch.setenv(SENTINEL_ENV, "app-password")
    url = calm.url(protocol=protocol)
    publisher = StatePublisher(open_store(url), "n")
    subscriber = StateSubscriber(open_store(url), "n", poll_timeout_s=WAIT)
    version = publisher.publish(state(7)).wait(WAIT)
    snapshot = subscriber.refresh(lambda snapshot: None)
    assert snapshot is not None
    assert (snapshot.version, number_in(snapshot)) == (version, 7)
    for each in (publisher, subscriber):
        each.close()


@pytest.mark.parametrize("value", ["", "some-other-password"], ids=["missing", "wrong"])
@pytest.mark.parametrize("variable", [PASSWORD_ENV, SENTINEL_ENV])
def test_a_wrong_password(
    calm: Group, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    """A learner fails at start; the error names whose password to set where, and none: C32, C94."""
    monkeypatch.setenv(variable, value)
    store = open_store(calm.url())
    with pytest.raises(errors.StoreAuthError, match=rf"\b{variable} in this") as caught:
        StatePublisher(store, "n", connect_timeout_s=WAIT)
    for secret in (DATA_PASSWORD, SENTINEL_PASSWORD, "some-other-password"):
        assert secret not in said(caught.value)
    store.close()


def test_a_wrong_name(calm: Group) -> None:
    """A primary that no sentinel watches is named, and so is every sentinel that was asked: C77."""
    store = open_store(calm.url().replace(SERVICE, "other"))
    with pytest.raises(errors.StoreUnavailableError, match="no sentinel names a primary") as caught:
        store.time_ms(timeout=WAIT)
    assert "'other'" in str(caught.value)
    for port in calm.sentinels:
        assert f"127.0.0.1:{port} watches no such primary" in str(caught.value)
    store.close()


def test_a_server_that_is_no_sentinel(monkeypatch: pytest.MonkeyPatch) -> None:
    """A data node in place of a sentinel is told apart from a sentinel that is down: C77."""
    for name in (PASSWORD_ENV, SENTINEL_ENV):
        monkeypatch.delenv(name)
    port = free_port()
    with start(redis_binary(), port=port):
        store = open_store(f"redis+sentinel://127.0.0.1:{port}/{SERVICE}")
        with pytest.raises(errors.StoreReplyError, match=f"127.0.0.1:{port} is no sentinel"):
            store.time_ms(timeout=WAIT)
        store.close()


def test_some_sentinels_are_gone(calm: Group) -> None:
    """With one sentinel silent and one gone, the third is asked within the connect timeout: C73."""
    asked: list[int] = []

    def counting(connection: socket.socket) -> None:
        asked.append(1)
        silent(connection)

    with peer(counting) as url:
        first = ",".join((url.removeprefix("redis://"), "127.0.0.1:1"))
        store = open_store(calm.url().replace("://", f"://{first},"), connect_timeout_s=3.0)
        publisher = StatePublisher(store, "n", connect_timeout_s=3.0, heartbeat_s=3600.0)
        assert len(asked) == 1
        # The one that knew is asked first from then on.
        store._exchange._connector._idle.disconnect()  # type: ignore[attr-defined]
        store.time_ms(timeout=WAIT)
        assert len(asked) == 1
        publisher.close()


def test_a_sentinel_gets_its_own_password_only() -> None:
    """The password of the data nodes is never sent to a sentinel: C94."""
    received: list[bytes] = []

    def recording(connection: socket.socket) -> None:
        while data := connection.recv(65536):
            received.append(data)
            connection.sendall(b"+OK\r\n" if b"AUTH" in data else b"*0\r\n")

    with peer(recording) as url:
        store = open_store(url.replace("redis://", "redis+sentinel://me@") + "/svc")
        with pytest.raises(errors.StoreUnavailableError, match="watches no such primary"):
            store.time_ms(timeout=WAIT)
        store.close()
    everything = b"".join(received)
    assert SENTINEL_PASSWORD.encode() in everything
    assert b"MASTERS" in everything
    assert DATA_PASSWORD.encode() not in everything


def test_no_connection_to_a_sentinel_is_kept(calm: Group) -> None:
    """A process holds one connection, to the primary, and none to the sentinels: C84."""

    def clients(port: int) -> int:
        return int(calm.client(port).info("clients")["connected_clients"])

    before = {port: clients(port) for port in calm.sentinels}
    stores = [open_store(calm.url()) for _ in range(10)]
    for store in stores:
        store.time_ms(timeout=WAIT)
    until(lambda: all(clients(p) < before[p] + 5 for p in before), "closed connections")
    for store in stores:
        store.close()
