"""Learners and readers of one node, over a real server: what is fetched, and what is not."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from redis_state_sync import StatePublisher, StateSubscriber, open_store
from redis_state_sync.embedded import EmbeddedServer
from redis_state_sync.events import Failed, Fetched
from redis_state_sync.keyring import Keyring
from redis_state_sync.keys import Keys
from redis_state_sync.manifest import XXH3, Manifest, Writer
from redis_state_sync.node_cache import FOLDER_ENV
from redis_state_sync.records import Records
from redis_state_sync.version import Version
from tests.chaos.proxy import Proxy, Rules
from tests.chaos.server import steady_port
from tests.contract.conftest import run
from tests.contract.node_process import LARGE, STATE_BYTES, WAIT, number_in, state
from tests.contract.servers import until, valkey_binary

ROOT = Path(__file__).resolve().parents[2]
POLLS = 128 << 10
"""More bytes than polls, manifests, small components and replies to notes take in a test."""


class Process:
    """A `tests.contract.node_process`, from outside.

    Args:
        url: Of the server.
        namespace: Which shared state.
        **environment: What is different from this process's.
    """

    def __init__(self, url: str, namespace: str, **environment: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.contract.node_process", url, namespace],
            cwd=ROOT,
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self, *words: object) -> None:
        """Without waiting for the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        """The next one."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"ended with {self._process.wait()}"
        return json.loads(line)

    def ask(self, *words: object) -> Any:
        """Tells it something, and waits for the answer."""
        self.tell(*words)
        return self.answer()

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.communicate()

    def end(self) -> int:
        """Lets it end by itself."""
        self._process.communicate(timeout=WAIT)
        return self._process.returncode


class Node:
    """A server, and processes of one node.

    Args:
        folder: Where the node's cache makes its own folder.
    """

    def __init__(self, server: EmbeddedServer, folder: Path, namespace: str) -> None:
        self.server = server
        self.namespace = namespace
        self.folder = folder / f"redis-state-sync-{os.geteuid()}"
        self._elsewhere = folder / "elsewhere"
        self._elsewhere.mkdir()
        self._stack = ExitStack()

    def process(self, *, elsewhere: bool = False, url: str | None = None) -> Process:
        """Another one; elsewhere: as if it were on another node; url: another way to the server."""
        environment = {FOLDER_ENV: str(self._elsewhere)} if elsewhere else {}
        made = Process(url or self.server.url, self.namespace, **environment)
        self._stack.callback(made.kill)
        return made

    def processes(self, count: int) -> list[Process]:
        """Some, which have begun."""
        made = [self.process() for _ in range(count)]
        for process in made:
            process.tell("refresh")
        for process in made:
            process.answer()
        return made

    def sent(self) -> int:
        """Bytes that the server has sent to anyone."""
        with closing(open_store(self.server.url)) as store:
            (info,) = run(store, ("INFO", "stats"))
        lines = dict(line.split(":", 1) for line in info.decode().split() if ":" in line)
        return int(lines["total_net_output_bytes"])

    def files(self) -> list[str]:
        """Of the cache."""
        return sorted(set(os.listdir(self.folder)) - {"users"}) if self.folder.exists() else []

    def close(self) -> None:
        """Kills all that still live."""
        self._stack.close()


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    """Over a Unix socket."""
    valkey_binary()
    with EmbeddedServer() as started:
        yield started


@pytest.fixture
def node(server: EmbeddedServer, node_cache: Path, keys: Keys) -> Iterator[Node]:
    made = Node(server, node_cache, keys.namespace)
    yield made
    made.close()


def test_the_second_reader_of_a_node(node: Node) -> None:
    """What the first reader of a node fetched, the second one does not fetch."""
    learner = node.process(elsewhere=True)
    learner.ask("publish", 1)
    first, second = node.process(), node.process()
    found = first.ask("refresh")
    assert found["number"] == 1
    assert found["fetched"] >= STATE_BYTES
    before = node.sent()
    assert second.ask("refresh")["number"] == 1
    assert node.sent() - before < POLLS


def test_readers_of_the_learners_node(node: Node) -> None:
    """Readers of the learner's node fetch no large component, of any version."""
    learner = node.process()
    learner.ask("publish", 0)
    readers = node.processes(2)
    before = node.sent()
    for number in range(1, 6):
        learner.ask("publish", number)
        for reader in readers:
            found = reader.ask("refresh")
            assert (found["number"], found["failed"]) == (number, [])
            assert found["fetched"] < POLLS
    assert node.sent() - before < POLLS


def test_eight_readers_at_once(node: Node) -> None:
    """Eight readers that find a new version at once fetch it once in all."""
    learner = node.process(elsewhere=True)
    readers = node.processes(8)
    for number in (1, 2):
        learner.ask("publish", number)
        before = node.sent()
        for reader in readers:
            reader.tell("refresh")
        found = [reader.answer() for reader in readers]
        assert [(each["number"], each["failed"]) for each in found] == [(number, [])] * 8
        assert node.sent() - before < 1.5 * STATE_BYTES


def test_a_thin_line(node: Node) -> None:
    """Where a piece takes longer than a stall may, readers wait all the same for whoever fetches.

    Each on its own they would have a third of the line each, and take three times as long.
    """
    node.process(elsewhere=True).ask("publish", 1)
    proxy = Proxy(str(node.server.socket_path), steady_port())
    with closing(proxy):
        proxy.set("replies", Rules(dribble=(40_000, 0.01)))
        readers = [node.process(url=proxy.url) for _ in range(3)]
        for reader in readers:
            reader.ask("patience", 0.5)
        before = node.sent()
        for reader in readers:
            reader.tell("refresh")
        found = [reader.answer() for reader in readers]
    assert [(each["number"], each["failed"]) for each in found] == [(1, [])] * 3
    assert node.sent() - before < 1.5 * STATE_BYTES


@pytest.mark.parametrize("operation", ["put_blobs", "append"])
def test_a_learner_that_is_killed(node: Node, operation: str) -> None:
    """A learner that dies in the middle of a publish harms nobody; the next one goes on."""
    learner, (reader,) = node.process(), node.processes(1)
    learner.ask("publish", 1)
    reader.ask("keep")
    learner.ask("hang", operation, 2)
    learner.kill()
    late = node.process()
    assert late.ask("refresh")["number"] == 1
    successor = node.process()
    for number in (3, 4, 5):
        successor.ask("publish", number)
        for process in (reader, late):
            found = process.ask("refresh")
            assert (found["number"], found["failed"]) == (number, [])
            assert found["fetched"] < POLLS
    assert reader.ask("kept") == [1]
    # Two of the states that came, two that `keep` holds, two that are being replaced.
    assert len(node.files()) <= 8
    assert [process.end() for process in (reader, late, successor)] == [0, 0, 0]
    assert not node.folder.exists()


def test_a_filler_that_is_killed(node: Node) -> None:
    """When a reader dies while it fetches for all, another one fetches, and nobody fails."""
    node.process(elsewhere=True).ask("publish", 1)
    filler, *others = (node.process() for _ in range(4))
    assert filler.ask("hang_filling") == "filling"
    until(lambda: [name for name in node.files() if name.endswith(".part")], "a file half-way")
    before = node.sent()
    for reader in others:
        reader.tell("refresh")
    filler.kill()
    found = [reader.answer() for reader in others]
    assert [(each["number"], each["failed"]) for each in found] == [(1, [])] * 3
    assert node.sent() - before < 1.5 * STATE_BYTES
    assert not [name for name in node.files() if name.endswith(".part")]


def removed(folder: Path) -> None:
    shutil.rmtree(folder)


def emptied(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


def read_only(folder: Path) -> None:
    folder.chmod(0o500)


def open_to_all(folder: Path) -> None:
    folder.chmod(0o777)


def a_link(folder: Path) -> None:
    folder.rename(folder.with_name("moved"))
    folder.symlink_to(folder.with_name("moved"))


def a_file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("no folder")


@pytest.mark.parametrize("harm", [removed, emptied, read_only, open_to_all, a_link, a_file])
def test_somebody_meddles_with_the_folder(node: Node, harm: Callable[[Path], None]) -> None:
    """Whatever becomes of the folder, all readers get every version, and keep what they have."""
    learner, readers = node.process(), node.processes(2)
    learner.ask("publish", 1)
    assert [reader.ask("keep") for reader in readers] == [1, 1]
    harm(node.folder)
    readers += node.processes(1)
    for number in (2, 3, 4):
        learner.ask("publish", number)
        found = [reader.ask("refresh") for reader in readers]
        assert [(each["number"], each["failed"]) for each in found] == [(number, [])] * 3
    assert [reader.ask("kept") for reader in readers] == [[1], [1], []]
    if harm in (removed, emptied):  # Then they have found each other again.
        assert max(each["fetched"] for each in found) < POLLS
    assert [process.end() for process in (learner, *readers)] == [0] * 4


@pytest.mark.parametrize("limit", [0, 1, LARGE + (64 << 10), 3 * LARGE])
def test_a_cache_that_is_too_small(node: Node, limit: int) -> None:
    """Without room, or without a cache, each reader fetches for itself what it does not find."""
    learner = node.process(elsewhere=True)
    learner.ask("publish", 0)
    readers = node.processes(2)
    for reader in readers:
        reader.ask("limit", limit)
    before = node.sent()
    for number in (1, 2, 3):
        learner.ask("publish", number)
        found = [reader.ask("refresh") for reader in readers]
        assert [(each["number"], each["failed"]) for each in found] == [(number, [])] * 2
        size = sum((node.folder / name).stat().st_size for name in node.files())
        assert size <= limit
    if limit < LARGE:
        assert node.sent() - before > 3 * 2 * STATE_BYTES


def test_a_reader_that_forks(node: Node) -> None:
    """A forked reader takes what its parent has from the node, and leaves its parent alone."""
    learner = node.process(elsewhere=True)
    learner.ask("publish", 1)
    reader = node.process()
    assert reader.ask("keep") == 1
    for number in (2, 3):
        learner.ask("publish", number)
        assert reader.ask("forked")["number"] == number
        assert reader.ask("refresh")["number"] == number
    before = node.sent()
    found = reader.ask("forked")
    assert (found["number"], found["failed"]) == (3, [])  # Its own, but not yet the child's.
    assert node.sent() - before < POLLS
    assert reader.ask("kept") == [1]


def test_a_reader_that_is_pickled(node: Node) -> None:
    """A subscriber that travels uses the cache of where it is."""
    learner, reader = node.process(), node.process()
    learner.ask("publish", 1)
    assert reader.ask("refresh")["number"] == 1
    reader.ask("travel")
    found = reader.ask("refresh")
    assert (found["number"], found["failed"]) == (1, [])
    assert found["fetched"] < POLLS


def test_another_namespace(node: Node) -> None:
    """The same state in another namespace is fetched there: namespaces share no files."""
    node.process().ask("publish", 1)
    other = Process(node.server.url, node.namespace + "/other")
    other.ask("publish", 1)
    names = node.files()
    assert len(names) == 4
    other.kill()


def test_what_is_kept(node: Node) -> None:
    """Of a snapshot that a reader keeps, no byte changes while 20 newer versions come."""
    learner, (reader,) = node.process(), node.processes(1)
    learner.ask("publish", 1)
    assert reader.ask("keep") == 1
    for number in range(2, 22):
        learner.ask("publish", number)
        assert reader.ask("refresh")["number"] == number
        assert reader.ask("kept") == [1]
    learner.ask("publish", 22)
    assert reader.ask("keep") == 2
    learner.ask("publish", 1)  # An older state again.
    assert reader.ask("refresh")["number"] == 1
    assert reader.ask("kept") == [1, 22]


def test_what_a_reader_writes(node: Node) -> None:
    """What one reader writes to its arrays reaches no other reader, of now or later."""
    learner, (vandal, early) = node.process(), node.processes(2)
    for number in (1, 2):
        learner.ask("publish", number)
        early.ask("keep")
        assert vandal.ask("scribble")
        late = node.process()
        found = late.ask("refresh")
        assert (found["number"], found["failed"]) == (number, [])
        assert found["fetched"] < POLLS
    assert early.ask("kept") == [1, 2]
    learner.ask("publish", 2)  # What did not change is not read from what readers have.
    assert node.process().ask("refresh")["number"] == 2


def test_sizes_that_change(node: Node) -> None:
    """States that grow and shrink arrive whole, and by way of the node's cache."""
    learner, (reader,) = node.process(), node.processes(1)
    for number in range(12):
        learner.ask("publish", number, LARGE + (number % 5) * (512 << 10))
        found = reader.ask("refresh")
        assert found["number"] == number
        assert found["fetched"] < POLLS


def test_all_that_died(node: Node) -> None:
    """Of processes that were killed nothing is left once the last one has ended by itself."""
    learner, readers = node.process(), node.processes(2)
    learner.ask("publish", 1)
    for reader in readers:
        reader.ask("refresh")
    for process in (learner, *readers):
        process.kill()
    assert node.files()
    last = node.process()
    found = last.ask("refresh")
    assert (found["number"], found["failed"]) == (1, [])
    assert last.end() == 0
    assert not node.folder.exists()


def test_a_forged_manifest_poisons_nobody(node: Node) -> None:
    """Who can write to the store, but not sign, puts nothing into the files of signed readers."""
    url, keyring = node.server.url, Keyring(lambda: "k" * 32)
    keys = Keys(node.namespace)
    publisher = StatePublisher(open_store(url), node.namespace, keyring=keyring, heartbeat_s=3600)
    with closing(publisher), closing(open_store(url)) as forger:
        version = publisher.publish(state(1)).wait(WAIT)
        (entry,) = forger.newest(keys, timeout=WAIT)
        signed = Records(keys, keyring).open(entry)
        # The digests of what is signed, as those of another algorithm, over bytes of the forger's.
        digests = signed.digests()
        evil = {digest: b"\xff" * size for digest, size in digests.items()}
        forger.put_blobs(keys, evil, ttl_s=60, timeout=WAIT)
        large = {name: c for name, c in signed.components.items() if c.size >= LARGE}
        forged = Manifest(Writer("forger", "h", 1), 0, large, algorithm=XXH3)
        beyond = Version(version.generation, version.number + 1)
        forger.append(keys, beyond, forged.encode(), ttl_s=60, timeout=WAIT)
        events: list[Any] = []
        unsigned = StateSubscriber(
            open_store(url), node.namespace, poll_timeout_s=WAIT, observers=[events.append]
        )
        assert unsigned.refresh(lambda snapshot: None) is None
        assert {e.category for e in events if isinstance(e, Failed)} == {"integrity"}
        reader_events: list[Any] = []
        reader = StateSubscriber(
            open_store(url),
            node.namespace,
            keyring=keyring,
            poll_timeout_s=WAIT,
            observers=[reader_events.append],
        )
        found: list[int] = []
        snapshot = reader.refresh(lambda s: found.append(s.version.number))
        if snapshot is not None:  # From the learner's own memory: what it signed.
            assert number_in(snapshot) == 1
            assert snapshot.version == version
        again = publisher.publish(state(2)).wait(WAIT)
        reader.wait_for(lambda s: found.append(number_in(s)), version=again, timeout=WAIT)
        assert found[-1] == 2
        fetched = [e.bytes_fetched for e in reader_events if isinstance(e, Fetched)]
        assert max(fetched) < POLLS
        unsigned.close()
        reader.close()
