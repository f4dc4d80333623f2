"""Commands to scripted nodes of a cluster: followed, bounded, and never for ever."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from redis_state_sync import errors, open_store
from redis_state_sync.cluster_exchange import MAX_REDIRECTS
from redis_state_sync.keys import Keys
from redis_state_sync.redis_store import RedisStore
from redis_state_sync.version import Version
from tests.unit.forking import in_child
from tests.unit.peers import answering, peer, silent
from tests.unit.states import WAIT

KEYS, OTHER = Keys("n"), Keys("other")
TTL = {"ttl_s": 100.0, "timeout": WAIT}
SECRET = "hunter2-hunter2"
# Far above what is asked for: the machine is shared.
MUCH_TOO_LONG = 5.0
NOTHING = b"*0\r\n"
TIME = b"*2\r\n$1\r\n5\r\n$1\r\n0\r\n"
OK = b"+OK\r\n"
HANGS_UP = b""

Answer = Callable[[list[bytes]], bytes]


class Node:
    """A scripted node. Answers with nothing new, or as it is told by `answer`."""

    def __init__(self) -> None:
        self.at = ""
        self.received: list[str] = []
        self.connections = 0
        self.answer: Answer = lambda command: NOTHING

    def says(self, *replies: bytes) -> Node:
        """From now on it gives these replies in turn, and the last of them again and again."""
        queue = list(replies)
        self.answer = lambda command: queue.pop(0) if len(queue) > 1 else queue[0]
        return self

    def serve(self, connection: Any) -> None:
        self.connections += 1

        def reply(command: list[bytes]) -> bytes:
            self.received.append(b" ".join(command).decode())
            return self.answer(command)

        answering(reply)(connection)

    def moved(self) -> bytes:
        """What another node says that knows that the slot is here."""
        return f"-MOVED 1 {self.at}\r\n".encode()

    def ask(self) -> bytes:
        """What another node says that is moving the slot here."""
        return f"-ASK 1 {self.at}\r\n".encode()


@contextmanager
def nodes(count: int) -> Iterator[list[Node]]:
    with ExitStack() as stack:
        made = [Node() for _ in range(count)]
        for node in made:
            node.at = stack.enter_context(peer(node.serve)).removeprefix("redis://")
        yield made


@contextmanager
def opened(*start: Node | str, **settings: Any) -> Iterator[RedisStore]:
    hosts = ",".join(node if isinstance(node, str) else node.at for node in start)
    store = open_store(f"redis+cluster://{hosts}", **settings)
    assert isinstance(store, RedisStore)
    try:
        yield store
    finally:
        store.close()


def poll(store: RedisStore, keys: Keys = KEYS, timeout: float = WAIT) -> None:
    assert store.newest(keys, timeout=timeout) == []


def polls(node: Node) -> int:
    return sum(command.startswith("XREVRANGE") for command in node.received)


def test_a_redirection_is_followed_and_remembered() -> None:
    """The first poll finds the node that has the slot, the second goes straight there: C79."""
    with nodes(2) as (first, owner), opened(first) as store:
        first.says(owner.moved())
        for _ in range(3):
            poll(store)
        assert (polls(first), polls(owner)) == (1, 3)
        assert (first.connections, owner.connections) == (1, 1)


def test_the_connection_to_the_wrong_node_is_closed() -> None:
    """A reader holds a connection to the node of its namespace, and to no other one: C84."""
    with nodes(2) as (first, owner), opened(first) as store:
        first.says(owner.moved())
        poll(store)
        exchange: Any = store._exchange
        host, port = owner.at.split(":")
        assert [node for node, c in exchange._connectors.items() if c.idle is not None] == [
            (host, int(port))
        ]
        assert exchange._connector.idle is None


def test_two_namespaces_on_two_nodes() -> None:
    """Namespaces of different nodes share a handle, and each keeps its connection: C79."""
    with nodes(2) as (one, two), opened(one) as store:
        one.answer = lambda c: NOTHING if b"{n}" in c[1] else two.moved()
        two.answer = lambda c: NOTHING if b"{other}" in c[1] else one.moved()
        for _ in range(5):
            poll(store, KEYS)
            poll(store, OTHER)
        assert (polls(one), polls(two)) == (6, 5)
        assert (one.connections, two.connections) == (1, 1)


def test_questions_without_a_key_need_no_connection_of_their_own() -> None:
    """TIME and INFO are asked of whichever node there is a connection to: C84."""
    with nodes(2) as (first, owner), opened(first) as store:
        first.says(owner.moved())
        owner.answer = lambda c: TIME if c[0] == b"TIME" else NOTHING
        poll(store)
        assert store.time_ms(timeout=WAIT) == 5000
        assert (first.connections, owner.connections) == (1, 1)


def test_an_empty_host_is_the_one_that_was_asked() -> None:
    """MOVED without a host means another port of the same host: C79."""
    with nodes(2) as (first, owner), opened(first) as store:
        port = owner.at.rpartition(":")[2]
        first.says(f"-MOVED 1 :{port}\r\n".encode())
        poll(store)
        assert polls(owner) == 1


@pytest.mark.parametrize("kind", ["MOVED", "ASK"])
def test_redirections_without_end(kind: str) -> None:
    """Nodes that send us round in circles are asked a few times, then it is an error: C5, C79."""
    with nodes(1) as (node,), opened(node) as store:
        node.answer = lambda c: OK if c == [b"ASKING"] else f"-{kind} 1 {node.at}\r\n".encode()
        with pytest.raises(
            errors.StoreUnavailableError, match=r"redirected 6 times.*agree"
        ) as told:
            poll(store)
        assert node.at in str(told.value)
        assert polls(node) == MAX_REDIRECTS + 1


@pytest.mark.parametrize(
    "reply",
    [
        *(b"-MOVED\r\n", b"-MOVED x\r\n", b"-MOVED 1 h\r\n", b"-MOVED 1 h:x\r\n", b"-ASK 1\r\n"),
        *(b"-MOVED one h:1\r\n", b"-MOVED 1 h:1 more\r\n", b"-MOVED 1 h:99999\r\n", b"-ASK \r\n"),
        *(
            b"-MOVED 1 ?:7000\r\n",
            b"-MOVED 1 h:0\r\n",
            b"-MOVED 1 \xff:1\r\n",
            b"-MOVED 1 h:-7\r\n",
        ),
    ],
)
def test_redirections_that_lead_nowhere(reply: bytes) -> None:
    """A redirection that is none is a typed error at once, and the next call is as any: C5, C79."""
    with nodes(1) as (node,), opened(node) as store:
        node.says(reply, NOTHING)
        with pytest.raises(errors.StoreError, match=r"127\.0\.0\.1") as caught:
            poll(store)
        assert type(caught.value) is errors.StoreReplyError
        poll(store)


def test_only_refused_commands_follow_a_moving_slot() -> None:
    """While a slot moves XADD is executed once; what has gone is asked for, each time anew: C79."""
    with nodes(2) as (source, target), opened(source) as store:
        source.answer = lambda c: target.ask() if c[1].endswith(b":readers") else b":1\r\n"
        target.answer = lambda c: OK if c == [b"ASKING"] else b":0\r\n"
        for number in (1, 2):
            store.append(KEYS, Version(1, number), b"m", **TTL)
        assert [c.split(" ")[0] for c in source.received] == ["XADD", *["EXPIRE"] * 2] * 2
        assert target.received == ["ASKING", f"EXPIRE {KEYS.readers} 100"] * 2
        assert (source.connections, target.connections) == (1, 1)


def test_every_command_has_one_key() -> None:
    """No command names keys that a moving slot could part from each other: C79."""
    digests = [f"{i:032x}" for i in range(40)]
    numbers = (b"XADD", b"EXPIRE", b"SET", b"UNLINK", b"XDEL", b"HSET", b"HDEL")
    with nodes(1) as (node,), opened(node) as store:
        node.answer = lambda c: b":1\r\n" if c[0] in numbers else NOTHING
        store.append(KEYS, Version(1, 1), b"m", **TTL)
        store.put_blobs(KEYS, dict.fromkeys(digests, b"x"), **TTL)
        assert store.refresh(KEYS, digests, **TTL) == set()
        store.drop(KEYS, [Version(1, 1), Version(1, 2)], digests, timeout=WAIT)
        store.note_reader(KEYS, "r", "note", **TTL)
        store.ask_for_blob(KEYS, digests[0], **TTL)
        poll(store)
        assert store.pins(KEYS, timeout=WAIT) == {}
        keys = [[w for w in c.split(" ") if w.startswith("rss:{n}:")] for c in node.received]
        assert {len(each) for each in keys} == {1}
        # All of them, and the notice that they would go.
        assert sum(c.startswith("UNLINK") for c in node.received) == 41


def test_a_user_who_may_not_ask() -> None:
    """Without the right to ASKING the error names it, and where all rights are listed: C83."""
    with nodes(2) as (source, target), opened(source) as store:
        source.says(target.ask())
        refused = b"-NOPERM this user has no permissions to run the 'asking' command\r\n"
        target.answer = lambda c: refused if c == [b"ASKING"] else source.moved()
        with pytest.raises(errors.StorePermissionError, match=r"'asking'.*deploy/redis"):
            poll(store)


def test_try_again() -> None:
    """What a node can not do while it moves a slot is tried again after a pause: C79."""
    with nodes(1) as (node,), opened(node) as store:
        node.says(*[b"-TRYAGAIN Multiple keys request during rehashing of slot\r\n"] * 8, NOTHING)
        poll(store)
        assert polls(node) == 9
        assert node.connections == 1


def test_trying_again_ends_with_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that asks to try again for ever is an error when the time is up, not later: C79."""
    monkeypatch.setattr("redis_state_sync.cluster_exchange.TRY_AGAIN_S", 1.0)
    with nodes(1) as (node,), opened(node) as store:
        node.says(b"-TRYAGAIN Multiple keys request during rehashing of slot\r\n")
        with pytest.raises(errors.StoreUnavailableError, match=r"TRYAGAIN.*moves the slot"):
            poll(store, timeout=1.9)
        assert polls(node) == 2


@pytest.mark.parametrize("code", ["CLUSTERDOWN", "LOADING"])
def test_a_node_that_is_not_ready_is_passed_over(code: str) -> None:
    """A node that has just started is no reason to fail while others know the slot: C79."""
    with nodes(3) as (first, second, owner), opened(first, second) as store:
        first.says(f"-{code} not yet\r\n".encode())
        second.says(owner.moved())
        poll(store)
        assert (polls(first), polls(second), polls(owner)) == (1, 1, 1)


@pytest.mark.parametrize("code", ["CLUSTERDOWN", "LOADING"])
def test_a_cluster_that_is_down(code: str) -> None:
    """If every node refuses, each is asked once, and what it said is the error: C5, C79."""
    expected = errors.StoreLoadingError if code == "LOADING" else errors.StoreUnavailableError
    with nodes(3) as all_of_them, opened(*all_of_them) as store:
        for node in all_of_them:
            node.says(f"-{code} The cluster is down\r\n".encode())
        with pytest.raises(errors.StoreError, match=code) as caught:
            poll(store)
        assert type(caught.value) is expected
        assert [polls(node) for node in all_of_them] == [1, 1, 1]
        for node in all_of_them:
            node.says(NOTHING)
        poll(store)


def test_the_owner_is_gone() -> None:
    """When the owner's connection breaks, the others are asked who has the slot now: C76, C79."""
    with nodes(3) as (first, old, new), opened(first) as store:
        first.says(old.moved())
        poll(store)
        old.says(HANGS_UP)
        first.says(new.moved())
        poll(store)
        assert polls(new) == 1
        assert polls(old) == 3  # Once more on a fresh connection: the old one may have been idle.
        poll(store)
        assert (polls(first), polls(new)) == (2, 2)


def test_the_owner_is_not_replaced_yet() -> None:
    """As long as all others name a node that is gone, it is an error with its address: C76, C79."""
    with nodes(1) as (first,), opened(first) as store:
        first.says(b"-MOVED 1 127.0.0.1:1\r\n")
        started = time.monotonic()
        with pytest.raises(errors.StoreUnavailableError, match=r"at 127\.0\.0\.1:1: poll failed"):
            poll(store)
        assert time.monotonic() - started < MUCH_TOO_LONG
        assert polls(first) == 2


def test_the_owner_hangs() -> None:
    """A silent owner costs the timeout once; the next call asks the others: C72, C76, C79."""
    with nodes(2) as (first, new), peer(silent) as hanging, opened(first) as store:
        first.says(b"-MOVED 1 %s\r\n" % hanging.removeprefix("redis://").encode())
        with pytest.raises(errors.StoreTimeoutError, match=hanging.removeprefix("redis://")):
            poll(store, timeout=1.0)
        first.says(new.moved())
        poll(store)
        assert polls(new) == 1


def test_an_owner_that_is_slow_to_reach_stays_the_owner() -> None:
    """Who gives up waiting for a slow connection finds it ready next time, here as well: C74."""
    with nodes(2) as (first, owner), opened(first, connect_timeout_s=WAIT) as store:
        first.says(owner.moved())
        exchange: Any = store._exchange
        make = exchange._make_for
        go_on = threading.Event()
        made: list[str] = []

        def slowly(node: Any) -> Any:
            made.append(node)
            assert go_on.wait(WAIT)
            return make(node)

        exchange._make_for = slowly  # Of the nodes that the first one names.
        with pytest.raises(errors.StoreTimeoutError, match=rf"at {owner.at}: .*still connecting"):
            poll(store, timeout=1.0)
        go_on.set()
        poll(store)
        assert len(made) == 1
        assert (first.connections, owner.connections) == (1, 1)


def test_some_start_nodes_are_gone() -> None:
    """With two nodes silent and one gone, the last is asked within the connect timeout: C73."""
    asked: list[int] = []

    def counting(connection: Any) -> None:
        asked.append(1)
        silent(connection)

    with nodes(1) as (last,), peer(counting) as one, peer(counting) as two:
        last.answer = lambda c: {b"AUTH": OK, b"TIME": TIME}.get(c[0], NOTHING)
        silent_ones = (url.removeprefix("redis://") for url in (one, two))
        start = (*silent_ones, "127.0.0.1:1", last)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("REDIS_STATE_SYNC_PASSWORD", SECRET)
            with opened(*start, connect_timeout_s=3.0) as store:
                assert store.time_ms(timeout=3.0) == 5000
                assert asked == [1, 1]
                # The one that answered is asked first from then on.
                store.close()
                poll(store)
                assert asked == [1, 1]


def test_no_node_can_be_reached() -> None:
    """If none can be reached the error says of each node why, and no secret: C33, C94."""
    with nodes(1) as (stranger,), pytest.MonkeyPatch.context() as patch:
        stranger.says(b"-WRONGPASS invalid username-password pair\r\n")
        patch.setenv("REDIS_STATE_SYNC_PASSWORD", SECRET)
        with opened("127.0.0.1:1", stranger) as store:
            told = r"no node can be reached: .*127\.0\.0\.1:1.*refused.*; .*WRONGPASS|wrong"
            with pytest.raises(errors.StoreAuthError, match=told) as caught:
                poll(store)
            assert stranger.at in str(caught.value)
            assert SECRET not in str(caught.value)


def test_nobody_listens() -> None:
    """Closed ports are an error at once, not after retries: C33, C73."""
    with opened("127.0.0.1:1", "127.0.0.1:2") as store:
        started = time.monotonic()
        told = r"redis\+cluster://127\.0\.0\.1:1,127\.0\.0\.1:2: no node.*:1.*:2"
        with pytest.raises(errors.StoreUnavailableError, match=told):
            store.time_ms(timeout=WAIT)
        assert time.monotonic() - started < MUCH_TOO_LONG


def test_a_node_that_hangs_up_is_asked_once_only() -> None:
    """A peer that closes every connection is given up at once, not when the time is over: C73."""
    with nodes(1) as (node,), opened(node) as store:
        node.says(HANGS_UP)
        with pytest.raises(errors.StoreUnavailableError, match=node.at):
            poll(store)
        assert polls(node) == 1


def test_a_closed_connection_is_replaced() -> None:
    """A connection that the node closed meanwhile is replaced within the same call: C76."""
    with nodes(1) as (node,), opened(node) as store:
        poll(store)
        node.says(HANGS_UP, NOTHING)
        poll(store)
        assert (node.connections, polls(node)) == (2, 3)


def test_closed_during_a_call() -> None:
    """A connection that is in use while the store is closed is not kept afterwards: C84."""
    started, go_on = threading.Event(), threading.Event()

    def slowly(command: list[bytes]) -> bytes:
        started.set()
        assert go_on.wait(WAIT)
        return NOTHING

    with nodes(1) as (node,), opened(node) as store:
        node.answer = slowly
        thread = threading.Thread(target=poll, args=(store,))
        thread.start()
        assert started.wait(WAIT)
        store.close()
        go_on.set()
        thread.join(WAIT)
        exchange: Any = store._exchange

        def kept() -> list[Any]:
            return [node for node, c in exchange._connectors.items() if c.idle is not None]

        assert kept() == []
        poll(store)
        assert (node.connections, len(kept())) == (2, 1)
        store.close()
        assert kept() == []


def test_a_password_file_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of the password that can not be read is named at once: C33."""
    monkeypatch.setenv("REDIS_STATE_SYNC_PASSWORD_FILE", "/nowhere/password")
    with opened("127.0.0.1:1") as store, pytest.raises(errors.SettingsError, match="/nowhere"):
        poll(store)


def test_travels() -> None:
    """A pickled store of a cluster finds its nodes anew where it arrives, by all of them: C91."""
    with nodes(2) as (gone, first), opened(gone, first) as store:
        poll(store)
        other = pickle.loads(pickle.dumps(store))
        gone.says(HANGS_UP)
        poll(other)
        other.close()
        assert other.describe() == store.describe() == f"redis+cluster://{gone.at},{first.at}"
        assert (polls(gone), polls(first)) == (2, 1)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_fork() -> None:
    """A child that is forked in the middle of a call asks by connections of its own: C90."""
    with nodes(2) as (first, owner), opened(first) as store:
        first.says(owner.moved())
        poll(store)
        with store._exchange._lock:
            assert in_child(lambda: poll(store, timeout=10.0)) == 0
        poll(store)
        # The child found the owner by itself, and left the parent its connection.
        assert (first.connections, owner.connections) == (2, 2)
        assert (polls(first), polls(owner)) == (2, 3)


@pytest.mark.parametrize("reply", [b"-MOVED 1 h:1\r\n", b"-ASK 1 h:1\r\n"])
def test_a_plain_url_to_a_cluster(reply: bytes) -> None:
    """A URL of one server that meets a node of a cluster says which URL to use: C33, C79."""
    with nodes(1) as (node,):
        node.says(reply)
        store = open_store(f"redis://{node.at}")
        with pytest.raises(errors.StoreError, match=r"node of a Redis Cluster: use redis\+cluster"):
            store.newest(KEYS, timeout=WAIT)
        store.close()
