"""Failovers of real servers, while a learner publishes and readers follow."""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from redis_state_sync import StatePublisher, StateSubscriber, Version, errors, open_store
from redis_state_sync.keys import Keys
from tests.contract.conftest import WAIT, said
from tests.contract.group import DATA_PASSWORD, SENTINEL_PASSWORD, SERVICE, Group, group, until
from tests.contract.servers import redis_binary, start
from tests.contract.traffic import Traffic, number_in, state

PASSWORD_ENV = "REDIS_STATE_SYNC_PASSWORD"
PROMISED_S = 2.0
CONNECT_S = 2.0  # the default of connect_timeout_s
KEYS = Keys("n")


@pytest.fixture(autouse=True)
def passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSWORD_ENV, DATA_PASSWORD)
    monkeypatch.setenv("REDIS_STATE_SYNC_SENTINEL_PASSWORD", SENTINEL_PASSWORD)


def newest(of: Group, port: int) -> str:
    """The newest version that one data node has."""
    entries = of.client(port).xrevrange(KEYS.versions, count=1)
    return str(entries[0][0]) if entries else ""


@pytest.mark.parametrize("how", ["resp2", "tracked", "tls", "frozen"])
def test_the_primary_is_lost_under_load(tmp_path: Path, how: str) -> None:
    """After SIGKILL publishing resumes 2 s after the failover, nothing goes back: C10, C76, C77.

    One that hangs, as behind a partition, costs the timeout of the attempt under way as well: C72.
    Readers that rely on the server's word are as quick.
    """
    with group(tmp_path, tls=how == "tls") as ours:
        tracked = how == "tracked"
        traffic = Traffic(ours.url(protocol=3 if tracked else 2), "n", tracking=tracked)
        promised = PROMISED_S
        try:
            until(lambda: len(traffic.stored) > 20, "twenty versions")
            old = ours.primary()
            lost = time.monotonic()
            if how == "frozen":
                promised += CONNECT_S
                os.kill(ours.nodes[old].pid or 0, signal.SIGSTOP)
            else:
                ours.nodes[old].kill()
            ours.failed_over(old)
            failed_over = time.monotonic()
            # Before a sentinel can have noticed, only a late reply of the old primary arrives.
            until(lambda: len(traffic.stored_since(lost + 0.3)) > 20, "twenty more")
            if how == "frozen":
                # It wakes up, takes itself for the primary, and is told otherwise.
                ours.tune(publish_period=100)
                os.kill(ours.nodes[old].pid or 0, signal.SIGCONT)
                until(lambda: ours.client(old).role()[0] == "slave", "the old primary as replica")
        finally:
            last = traffic.stop()
        resumed, first_after = traffic.stored_since(lost + 0.3)[0]
        assert resumed - failed_over < promised + traffic.stall_s
        assert all(any(v >= first_after for v, _ in seen) for seen in traffic.applied)
        assert newest(ours, ours.primary()) == str(last)


@pytest.mark.parametrize("tracked", [False, True])
def test_a_failover_by_hand_under_load(tmp_path: Path, tracked: bool) -> None:
    """A primary that is demoted while all goes on is left for the new one: C76."""
    with group(tmp_path) as ours:
        traffic = Traffic(ours.url(protocol=3 if tracked else 2), "n", tracking=tracked)
        try:
            until(lambda: len(traffic.stored) > 20, "twenty versions")
            old = ours.primary()
            ours.client(next(iter(ours.sentinels))).execute_command("SENTINEL", "FAILOVER", SERVICE)
            ours.failed_over(old)
            # Until they demote the old one, both take writes; by default for up to eight seconds.
            ours.tune(publish_period=100)
            until(lambda: ours.client(old).role()[0] == "slave", "the old primary as replica")
            demoted = time.monotonic()
            until(lambda: len(traffic.stored_since(demoted)) > 20, "twenty more")
        finally:
            last = traffic.stop()
        resumed, _ = traffic.stored_since(demoted)[0]
        assert resumed - demoted < PROMISED_S + traffic.stall_s
        assert newest(ours, ours.primary()) == str(last)


def cut_off(ours: Group, replica: int) -> None:
    """From now on the replica gets nothing more."""
    ours.client(replica).config_set("masterauth", "no longer right")
    ours.client(ours.primary()).execute_command("CLIENT", "KILL", "TYPE", "replica")
    until(lambda: ours.client(replica).info("replication")["master_link_status"] == "down", "a cut")


@pytest.mark.parametrize("by", ["publish", "heartbeat"])
def test_a_failover_loses_the_last_writes(tmp_path: Path, by: str) -> None:
    """Readers keep a version that the new primary lacks; the next one is greater: C10, C63."""
    with group(tmp_path) as ours, ExitStack() as stack:
        url, old, replica = ours.url(), ours.primary(), ours.replica()
        heartbeat = 3600.0 if by == "publish" else 0.1
        publisher = StatePublisher(open_store(url), "n", heartbeat_s=heartbeat)
        stack.callback(publisher.close)
        reader = StateSubscriber(open_store(url), "n", poll_timeout_s=WAIT)
        stack.callback(reader.close)
        applied: list[tuple[Version, int]] = []

        def refresh() -> None:
            reader.refresh(lambda s: applied.append((s.version, number_in(s))))

        kept = publisher.publish(state(1)).wait(WAIT)
        until(lambda: newest(ours, replica) == str(kept), "the first version on the replica")
        cut_off(ours, replica)
        for number in (2, 3):
            lost = publisher.publish(state(number)).wait(WAIT)
            refresh()
        assert applied[-1] == (lost, 3)
        ours.nodes[old].kill()
        ours.failed_over(old)
        if by == "publish":
            assert newest(ours, replica) == str(kept)
            polls: list[object] = []
            reader._reports._observers = (polls.append,)
            until(lambda: [refresh(), polls][1], "a poll of the new primary")
            assert reader.held == lost
            later = publisher.publish(state(4)).wait(WAIT)
        else:
            later = Version(lost.generation, lost.number + 1)
        until(lambda: [refresh(), reader.held == later][1], "the next version")
        assert applied[-1] == (later, 4 if by == "publish" else 3)
        assert later > lost
        assert [version for version, _ in applied] == sorted({version for version, _ in applied})


@pytest.mark.parametrize("protocol", [2, 3])
def test_a_primary_that_becomes_read_only(monkeypatch: pytest.MonkeyPatch, protocol: int) -> None:
    """A demoted primary refuses versions and is read on; it takes them when it is back: C76."""
    monkeypatch.delenv(PASSWORD_ENV)
    with start(redis_binary()) as server, ExitStack() as stack:
        url = f"{server.url}?protocol={protocol}"
        operator = open_store(url)
        publisher = StatePublisher(open_store(url), "n", heartbeat_s=0.05)
        reader = StateSubscriber(open_store(url), "n", poll_timeout_s=WAIT)
        for each in (reader, publisher, operator):
            stack.callback(each.close)
        applied: list[Version] = []
        first = publisher.publish(state(1)).wait(WAIT)
        # Of nobody: port 1 of loopback is never listened on.
        operator._run("test", [("REPLICAOF", "127.0.0.1", "1")], WAIT)  # type: ignore[attr-defined]
        second = publisher.publish(state(2))
        with pytest.raises(errors.PublishTimeoutError) as caught:
            second.wait(0.3)
        assert "READONLY" in said(caught.value) or "replica" in said(caught.value)
        assert reader.refresh(lambda s: applied.append(s.version)) is not None
        assert applied == [first]
        operator._run("test", [("REPLICAOF", "NO", "ONE")], WAIT)  # type: ignore[attr-defined]
        assert second.wait(WAIT) > first
        until(lambda: reader.refresh(lambda s: applied.append(s.version)), "the second version")
        assert applied == [first, second.version]
