"""RESP2 and RESP3 with servers that know the one only."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from redis_state_sync import StatePublisher, StateSubscriber, errors, open_store
from redis_state_sync.embedded import EmbeddedServer
from redis_state_sync.store import Store
from tests.contract.conftest import WAIT, said
from tests.contract.servers import redis_binary, start
from tests.unit.peers import peer, saying

SECRET = "hunter2-hunter2"


@pytest.fixture(scope="module", params=[None, SECRET], ids=["open", "password"])
def server(request: pytest.FixtureRequest) -> Iterator[EmbeddedServer]:
    """A real server without HELLO, as Redis 5 and some proxies are."""
    with start(redis_binary(), 'rename-command HELLO ""', password=request.param) as server:
        yield server


@pytest.fixture(autouse=True)
def password(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "password" in request.node.name:
        monkeypatch.setenv("REDIS_STATE_SYNC_PASSWORD", SECRET)


def opened(server: EmbeddedServer, options: str = "") -> Store:
    return open_store(f"{server.url}{options}")


@pytest.mark.parametrize("options", ["", "?protocol=2"])
def test_resp2_needs_no_hello(server: EmbeddedServer, options: str) -> None:
    """A server that does not know HELLO is spoken to by RESP2, which is the default: C75."""
    publisher = StatePublisher(opened(server, options), "n")
    subscriber = StateSubscriber(opened(server, options), "n", poll_timeout_s=WAIT)
    version = publisher.publish({"c": 1}).wait(WAIT)
    snapshot = subscriber.refresh(lambda snapshot: None)
    assert snapshot is not None
    assert (snapshot.version, snapshot["c"]) == (version, 1)
    for each in (publisher, subscriber):
        each.close()


def test_resp3_says_what_to_change(server: EmbeddedServer) -> None:
    """Asked for RESP3 it is refused with the remedy; the password it quoted is not shown: C75."""
    store = opened(server, "?protocol=3")
    with pytest.raises(errors.StoreError, match=r"HELLO.*leave protocol=3 out") as caught:
        StatePublisher(store, "n")
    assert SECRET not in said(caught.value)
    store.close()


def test_a_protocol_that_is_refused_by_its_number() -> None:
    """A server that knows HELLO but not RESP3 is refused with the same remedy: C75."""
    with peer(saying(b"-NOPROTO unsupported protocol version\r\n")) as url:
        store = open_store(f"{url}?protocol=3")
        with pytest.raises(errors.StoreError, match=r"NOPROTO.*leave protocol=3 out"):
            store.time_ms(timeout=WAIT)
        store.close()
