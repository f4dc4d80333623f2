"""A real cluster that nobody harms: who is asked, with which credentials, and over TLS."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from redis_state_sync import SettingsError, StatePublisher, StateSubscriber, errors, open_store
from redis_state_sync.keys import Keys
from redis_state_sync.store import Entry, Store
from redis_state_sync.version import Version
from tests.contract.cluster import Cluster, cluster, slot_of
from tests.contract.conftest import WAIT, said
from tests.contract.servers import Authority, until
from tests.contract.traffic import number_in, state
from tests.deploy.server import PASSWORDS, render_acl

PASSWORD_ENV = "REDIS_STATE_SYNC_PASSWORD"
SECRET = "password-of-all-nodes"
_numbers = itertools.count()


@pytest.fixture(scope="module")
def calm() -> Iterator[Cluster]:
    """Three primaries."""
    with cluster() as made:
        yield made


@pytest.fixture(scope="module")
def locked() -> Iterator[Cluster]:
    """Three primaries that ask for a password."""
    with cluster(password=SECRET) as made:
        yield made


def namespace_on(nodes: Cluster, port: int) -> str:
    """A namespace that lives on this node, and that no other test has."""
    while True:
        name = f"n{next(_numbers)}"
        if nodes.owner(name) == port:
            return name


@contextmanager
def opened(url: str) -> Iterator[Store]:
    store = open_store(url)
    try:
        yield store
    finally:
        store.close()


def calls(nodes: Cluster, port: int, command: str) -> tuple[int, int]:
    """How often a node executed a command, and how often it refused to."""
    found = nodes.client(port).info("commandstats").get(f"cmdstat_{command}", {})
    return found.get("calls", 0), found.get("rejected_calls", 0)


def connections(nodes: Cluster, port: int) -> int:
    """How many connections a node was asked for so far."""
    return int(nodes.client(port).info("stats")["total_connections_received"])


def clients(nodes: Cluster, port: int) -> int:
    """How many connections a node has, but for the one that asks."""
    return len(nodes.client(port).client_list(_type="normal")) - 1


def roundtrip(store: Store, namespace: str, number: int) -> None:
    """Publishes a state and reads it back."""
    publisher = StatePublisher(store, namespace, heartbeat_s=3600.0)
    version = publisher.publish(state(number)).wait(WAIT)
    snapshot = StateSubscriber(store, namespace, poll_timeout_s=WAIT).refresh(lambda s: None)
    assert snapshot is not None
    assert (snapshot.version, number_in(snapshot)) == (version, number)
    publisher.close()


@pytest.mark.parametrize("protocol", [2, 3])
def test_the_node_of_a_namespace_is_found_and_remembered(calm: Cluster, protocol: int) -> None:
    """From the second call on one command goes to the right node, and none to others: C79."""
    first, second, third = calm.nodes
    keys = Keys(namespace_on(calm, second))
    before = {port: calls(calm, port, "xrevrange") for port in calm.nodes}
    with opened(calm.url(first, protocol=protocol)) as store:
        for _ in range(5):
            assert store.newest(keys, timeout=WAIT) == []
    after = {port: calls(calm, port, "xrevrange") for port in calm.nodes}
    assert after[first] == (before[first][0], before[first][1] + 1)
    assert after[second] == (before[second][0] + 5, before[second][1])
    assert after[third] == before[third]


def test_a_start_node_is_gone(calm: Cluster) -> None:
    """A start node that is down is passed over, wherever the namespace lives: C33, C73."""
    for port in calm.nodes:
        with opened(calm.url(1, *calm.nodes)) as store:
            roundtrip(store, namespace_on(calm, port), port)


def test_two_namespaces_through_one_handle(calm: Cluster) -> None:
    """Namespaces of different nodes share a handle, which keeps a connection to each: C79, C84."""
    first, second, third = calm.nodes
    names = [Keys(namespace_on(calm, port)) for port in (first, second)]
    with opened(calm.url()) as store:
        for number in range(1, 6):
            for keys in names:
                store.append(keys, Version(1, number), b"m", ttl_s=60, timeout=WAIT)
                assert store.newest(keys, timeout=WAIT) == [Entry(Version(1, number), b"m")]
            if number == 1:
                before = {port: connections(calm, port) for port in calm.nodes}
        assert {port: connections(calm, port) for port in calm.nodes} == before
        until(
            lambda: [clients(calm, p) for p in (first, second, third)] == [1, 1, 0], "two of them"
        )


def test_readers_connect_to_their_node_alone(calm: Cluster) -> None:
    """Twenty readers hold twenty connections, all to the node of their namespace: C84."""
    first, second, third = calm.nodes
    name = namespace_on(calm, third)
    with opened(calm.url()) as store:
        roundtrip(store, name, 1)
    readers = [
        StateSubscriber(open_store(calm.url()), name, poll_timeout_s=WAIT) for _ in range(20)
    ]
    for reader in readers:
        assert reader.refresh(lambda s: None) is not None
    until(lambda: [clients(calm, p) for p in (first, second, third)] == [0, 0, 20], "twenty")
    for reader in readers:
        reader.close()
    until(lambda: clients(calm, third) == 0, "no connection")


def test_a_plain_url(calm: Cluster) -> None:
    """A learner with a URL of one server fails at start and is told which URL to use: C33, C79."""
    first, second, _ = calm.nodes
    with opened(f"redis://127.0.0.1:{first}") as store:
        with pytest.raises(errors.StoreError, match=r"MOVED.*use redis\+cluster://") as caught:
            StatePublisher(store, namespace_on(calm, second))
        assert type(caught.value) is errors.StoreError


@pytest.mark.parametrize(
    ("kind", "says"), [("unknown-endpoint", ""), ("hostname", "cluster-announce-hostname")]
)
def test_nodes_that_do_not_name_their_host(calm: Cluster, kind: str, says: str) -> None:
    """No host is the host that was asked; a '?' is an error that names the remedy: C79."""
    first, second, _ = calm.nodes
    name = namespace_on(calm, second)
    calm.set("cluster-preferred-endpoint-type", kind)
    try:
        with opened(calm.url(first)) as store:
            if says:
                with pytest.raises(errors.StoreReplyError, match=says):
                    store.newest(Keys(name), timeout=WAIT)
            else:
                roundtrip(store, name, 1)
    finally:
        calm.set("cluster-preferred-endpoint-type", "ip")


def test_a_password(locked: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The nodes that a cluster names get the same password as the first one: C94."""
    monkeypatch.setenv(PASSWORD_ENV, SECRET)
    first, second, third = locked.nodes
    for port in (second, third):
        with opened(locked.url(first)) as store:
            roundtrip(store, namespace_on(locked, port), port)


@pytest.mark.parametrize("value", ["", "some-other-password"], ids=["missing", "wrong"])
def test_a_wrong_password(locked: Cluster, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    """A learner fails at start; the error names where to set the password, and none: C32, C94."""
    monkeypatch.setenv(PASSWORD_ENV, value)
    with opened(locked.url()) as store:
        with pytest.raises(errors.StoreAuthError, match=rf"\b{PASSWORD_ENV} in this") as caught:
            StatePublisher(store, "n", connect_timeout_s=WAIT)
        for secret in (SECRET, "some-other-password"):
            assert secret not in said(caught.value)


def test_the_roles_of_deploy(
    locked: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The users of deploy/ may do all that it takes, also while a slot moves: C83."""
    rules = render_acl(tmp_path / "users.acl", (9, 0, 0)).read_text().splitlines()
    for port, rule in itertools.product(locked.nodes, rules):
        locked.client(port).acl_log_reset()
        user, name, *words = re.findall(r"\([^)]*\)|\S+", rule)
        if name in PASSWORDS:
            locked.call(port, "ACL", f"SET{user}", name, *words)
    for role, password in PASSWORDS.items():
        monkeypatch.setenv(f"PASSWORD_OF_{role}", password)

    def store_of(role: str) -> Store:
        url = locked.url(third).replace("://", f"://{role}@")
        return open_store(url, password_env=f"PASSWORD_OF_{role}")

    first, second, third = locked.nodes
    name = namespace_on(locked, first)
    slot = slot_of(name)
    with ExitStack() as stack:
        publisher = StatePublisher(store_of("learner"), name, history=1, heartbeat_s=0.05)
        reader = StateSubscriber(store_of("runner"), name, poll_timeout_s=WAIT)
        for each in (reader, publisher):
            stack.callback(each.close)

        def goes_on(number: int) -> None:
            version = publisher.publish(state(number)).wait(WAIT)
            publisher.flush(WAIT)  # What it pushed out is dropped.
            snapshot = reader.refresh(lambda s: None)
            assert snapshot is not None
            assert (snapshot.version, number_in(snapshot)) == (version, number)

        goes_on(1)
        locked.begin_moving(slot, first, second)
        goes_on(2)
        for key in locked.keys_in(slot, first):
            locked.move_key(key, first, second)
        goes_on(3)
        locked.finish_moving(slot, second)
        goes_on(4)
        assert "permission" not in publisher.stats.failures
    for port in locked.nodes:
        assert locked.client(port).acl_log() == []


def test_tls(tmp_path: Path) -> None:
    """A certificate must be for the name that a node announces, not for that of the URL: C82."""
    authority = Authority(tmp_path)
    announce = ("cluster-announce-hostname localhost", "cluster-preferred-endpoint-type hostname")
    with cluster(*announce, tls=(authority, authority.issue("localhost"))) as nodes:
        first, second, _ = nodes.nodes
        for protocol in (2, 3):
            with opened(nodes.url(first, host="localhost", protocol=protocol)) as store:
                roundtrip(store, namespace_on(nodes, second), protocol)
        nodes.set("cluster-preferred-endpoint-type", "ip")
        with opened(nodes.url(first, host="localhost")) as store:
            told = f"at 127.0.0.1:{second}: TLS failed.*name or address.*certificate is for"
            with pytest.raises(errors.StoreTLSError, match=told):
                StatePublisher(store, namespace_on(nodes, second))
        unchecked = nodes.url(first, ssl_check_hostname="false")
        with opened(unchecked) as store:
            roundtrip(store, namespace_on(nodes, second), 1)
        missing = nodes.url(first, host="localhost", ssl_ca_certs=tmp_path / "no.pem")
        refused = pytest.raises(SettingsError, match=r"ssl_ca_certs.*no\.pem")
        with opened(missing) as store, refused:
            store.time_ms(timeout=WAIT)
