"""One learner, readers, a server, and proxies between them: all real, each ended by its pid."""

from __future__ import annotations

import os
import random
import secrets
import signal
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import pytest

from redis_state_sync import Version, open_store
from redis_state_sync.keyring import KEY_ENV, find_keyring
from redis_state_sync.keys import Keys
from redis_state_sync.manifest import Manifest
from redis_state_sync.node_cache import FOLDER_ENV
from redis_state_sync.records import Records
from tests.chaos.checks import Violation
from tests.chaos.journal import Journal
from tests.chaos.line_probe import SLOW_S
from tests.chaos.members import Learner, Member, Reader
from tests.chaos.newcomer import Newcomer
from tests.chaos.proxy import Proxy
from tests.chaos.server import PATIENCE_S, Server, steady_port
from tests.chaos.stalls import Interval

MemberT = TypeVar("MemberT", bound=Member)


@dataclass(frozen=True)
class Plan:
    """What a world is made of.

    Args:
        seed: Of the readers' pauses.
        readers: How many. Every other one follows one writer id, the rest follow anyone. Half of
            each map what the node's cache has and rely on tracking; the others poll and fetch.
        every_s: Seconds between two states of the learner.
        large: Whether a state has a component of several pieces.
        signed: Whether records are signed.
    """

    seed: int = 0
    readers: int = 4
    every_s: float = 0.05
    large: bool = False
    signed: bool = False


class World:
    """Runs from `with` to its end.

    Args:
        folder: For journals and logs.
        plan: What it is made of.
    """

    def __init__(self, folder: Path, plan: Plan = Plan()) -> None:
        self.folder = folder
        self.plan = plan
        self.namespace = f"chaos/{plan.seed}"
        self.keys = Keys(self.namespace)
        self.journal = Journal(folder / "world.jsonl")
        self.violations: list[Violation] = []
        self.members: list[Member] = []
        self._living: list[Member] = []
        self.readers: list[Reader] = []
        self._newcomers: list[Newcomer] = []
        self.losses: list[float] = []
        """When the store lost data."""
        self._stalls: list[Interval] = []
        self._names: Counter[str] = Counter()
        self._stack = ExitStack()

    def __enter__(self) -> World:
        try:
            self._begin()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    def _begin(self) -> None:
        patch = self._stack.enter_context(pytest.MonkeyPatch.context())
        patch.delenv(KEY_ENV, raising=False)
        # One is the readers' node, where learners are in turn; the other learners are elsewhere.
        self.node, self._elsewhere = (
            Path(self._stack.enter_context(TemporaryDirectory(prefix="rss-", dir="/dev/shm")))
            for _ in range(2)
        )
        patch.setenv(FOLDER_ENV, str(self.node))
        if self.plan.signed:
            patch.setenv(KEY_ENV, secrets.token_hex(32))
        self._keyring = find_keyring()
        self.records = Records(self.keys, self._keyring)
        self.server = self._stack.enter_context(closing(Server(self.folder)))
        self._spare: Server | None = None
        # Each has a line of its own, so that faults can hit one or the other.
        self.proxies = {
            name: self._stack.enter_context(closing(Proxy(self.server.socket, steady_port())))
            for name in ("learner", "readers", "candidate")
        }
        self._stack.callback(self._end_members)
        self._machine = self._add(Member("machine", self.folder, "tests.chaos.machine", {}))
        self.learner = self.start_learner()
        self.readers = [self._new_reader(place) for place in range(self.plan.readers)]
        self.wait(lambda: all(r.applied for r in self.readers), "readers that hold a version")

    # ------------------------------------------------------------------ processes

    def start_learner(
        self, *, writer: object = None, every_s: float | None = None, line: str = "learner"
    ) -> Learner:
        """Starts one, and waits until it has claimed the namespace or has given up."""
        name = self._name("learner")
        pace = self.plan.every_s if every_s is None else every_s
        on_readers_node = self._names["learner"] % 2 == 1
        options: dict[str, object] = {
            **self._common(),
            "shares": True,
            "url": self.proxies[line].url,
            "writer": writer or f"writer-of-{name}",
        }
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(FOLDER_ENV, str(self.node if on_readers_node else self._elsewhere))
            learner = self._add(Learner(name, self.folder, options | {"every-s": pace}))
        learner.on_readers_node = on_readers_node
        ended = ("claimed", "not_started")
        self.wait(lambda: any(map(learner.told, ended)), f"{name} that has begun")
        return learner

    def replace_readers(self, old: Iterable[Reader]) -> None:
        """Kills some; others take their places, and are waited for until they read."""
        for reader in old:
            reader.signal(signal.SIGKILL)
            self.readers[reader.place] = self._new_reader(reader.place)
        self.wait(lambda: all(r.told("start") for r in self.readers), "readers that have begun")

    def _new_reader(self, place: int) -> Reader:
        name = self._name(f"reader-{place}")
        writer = self.learner.writer if place % 2 else None
        seed = random.Random(f"{self.plan.seed}/{name}").randrange(1 << 30)
        shares = (place // 2 + self.plan.seed) % 2 == 0
        url = self.proxies["readers"].url + ("?protocol=3" if shares else "")
        options = {**self._common(), "url": url, "seed": seed, "shares": shares}
        return self._add(Reader(name, place, self.folder, options | {"writer": writer}))

    def _add(self, member: MemberT) -> MemberT:
        self.members.append(member)
        self._living.append(member)
        return member

    def enthrone(self, learner: Learner) -> None:
        """This is the learner now. Readers that followed the other one only end with it."""
        self.learner = learner
        self.replace_readers([r for r in self.readers if r.writer not in (None, learner.writer)])

    def newcomer(self) -> Newcomer:
        """Another reader, that has nothing yet."""
        self._newcomers.append(
            Newcomer(
                self._name("newcomer"),
                self.proxies["readers"].url,
                self.namespace,
                large=self.plan.large,
                keyring=self._keyring,
            )
        )
        return self._newcomers[-1]

    def _common(self) -> dict[str, object]:
        return {"namespace": self.namespace, "large": self.plan.large}

    def _name(self, kind: str) -> str:
        self._names[kind] += 1
        return f"{kind}.{self._names[kind]}" if "-" in kind else f"{kind}-{self._names[kind]}"

    @property
    def node_folder(self) -> Path:
        """The node's cache's own folder, which is there as long as somebody uses it."""
        return self.node / f"redis-state-sync-{os.geteuid()}"

    # ---------------------------------------------------------------- observation

    def look(self) -> None:
        """Reads on in all journals, and notes what must not be."""
        for member in list(self._living):
            ended = member.exit_code is not None  # Before its last lines are read.
            for line in member.look():
                if line["ev"] == "stall":
                    self._stalls.append((line["since"], line["until"]))
            if not ended:
                continue
            self._living.remove(member)
            if not member.expected_end:
                tail = member.log.read_text(errors="replace")[-2000:]
                self.violation(6, member.name, f"ended with {member.exit_code}: {tail}")

    def wait(self, true: Any, what: str, timeout: float = PATIENCE_S) -> None:
        """Waits until something is so; reads the journals meanwhile."""
        deadline = time.monotonic() + timeout
        self.look()
        while not true():
            if time.monotonic() > deadline:
                raise AssertionError(f"{what}: not within {timeout:g} s")
            time.sleep(0.005)
            self.look()

    def pause(self, seconds: float) -> None:
        """Lets them work; reads the journals meanwhile."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, 0.05))
            self.look()

    def stalls(self) -> list[Interval]:
        """When something stood still for long enough to miss a poll's reply."""
        return [(since, until) for since, until in self._stalls if until - since > SLOW_S]

    def machine_stalls(self) -> list[Interval]:
        """When a CPU stood still."""
        lines = [line for line in self._machine.lines if line["ev"] == "stall"]
        return [(line["since"], line["until"]) for line in lines]

    def violation(self, invariant: int, who: str, text: str) -> None:
        """Notes that a promise was broken."""
        self.violations.append(Violation(invariant, who, text, time.monotonic()))
        self.journal.write("violation", invariant=invariant, who=who, text=text)

    def failures(self) -> Counter[str]:
        """All that was counted as failed by the processes so far."""
        return sum((each.failures for each in (*self.members, *self._newcomers)), Counter())

    # ---------------------------------------------------------------------- store

    def newest(self) -> tuple[Version, Manifest]:
        """The newest state that the server holds."""
        store = open_store(self.server.url)
        try:
            for entry in store.newest(self.keys, count=20, timeout=PATIENCE_S):
                if not entry.version.is_claim:
                    return entry.version, self.records.open(entry)
        finally:
            store.close()
        raise AssertionError("the server holds no state")

    def lost_data(self) -> None:
        """From now on the store lacks something that it had."""
        self.losses.append(time.monotonic())
        self.journal.write("loss")

    def replica(self) -> Server:
        """A second server, which has all that the first one has."""
        if self._spare is None:
            self._spare = self._stack.enter_context(closing(Server(self.folder)))
        elif not self._spare.up:
            self._spare.start_empty()
        spare, primary = self._spare, self.server
        spare.client.replicaof("127.0.0.1", str(primary.port))  # type: ignore[no-untyped-call]
        self.wait(lambda: spare.info("master_link_status") == "up", "a replica that follows")
        return spare

    def promote(self) -> None:
        """The second server is the first one now: clients reach it by the same address."""
        assert self._spare is not None
        self.server, self._spare = self._spare, self.server
        for proxy in self.proxies.values():
            proxy.target = self.server.socket

    def _end_members(self) -> None:
        for member in self.members:
            member.signal(signal.SIGCONT)
            member.expected_end = True
            if member.exit_code is None:
                try:
                    member.order("stop")
                except BrokenPipeError:
                    pass  # It ended just now.
        for member in self.members:
            member.end()
        self.look()
