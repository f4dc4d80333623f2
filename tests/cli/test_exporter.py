"""`exporter`: what the store holds, for Prometheus."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from redis_state_sync import History, Version, instruments, open_store
from redis_state_sync.cli.looker import Looker
from redis_state_sync.errors import StorePermissionError, StoreTimeoutError
from redis_state_sync.memory_store import MemoryStore
from redis_state_sync.reader_notes import note_of
from redis_state_sync.testing import ScriptedStore
from tests.cli.conftest import WAIT, Cli, fetched, learner, published, state
from tests.cli.test_doctor import server
from tests.contract.servers import until
from tests.unit.states import publishing

SECRET = "secret-of-a-test-2"
Samples = dict[str, dict[str, float]]


@dataclass
class Running:
    """The command as a process of its own."""

    process: subprocess.Popen[str]
    url: str

    def text(self) -> str:
        with urllib.request.urlopen(self.url, timeout=WAIT) as reply:  # noqa: S310 - http
            return str(reply.read().decode())

    def samples(self) -> Samples:
        """Name without prefix -> namespace, or another label's value -> value."""
        found: Samples = {}
        for family in text_string_to_metric_families(self.text()):
            for sample in family.samples:
                label = sample.labels.get("state_namespace", sample.labels.get("category", ""))
                name = sample.name.removeprefix(instruments.PREFIX)
                found.setdefault(name, {})[label] = sample.value
        return found

    def until(self, name: str, label: str, value: float | None) -> Samples:
        """Waits until a metric has a value; None: until it is not there."""
        until(lambda: self.samples().get(name, {}).get(label) == value, f"{name} {label} {value}")
        return self.samples()


@contextmanager
def exporter(*words: str, **environment: str) -> Iterator[Running]:
    process = subprocess.Popen(
        [*(sys.executable, "-m", "redis_state_sync.cli.main", "exporter", "--port", "0"), *words],
        env={**os.environ, **environment},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        line = next((line for line in process.stderr if "serving" in line), "")
        yield Running(process, line.split()[-1])
    finally:
        process.kill()
        process.wait()
        process.stderr.close()  # type: ignore[union-attr]


def test_what_it_serves(url: str) -> None:
    """Each namespace has its numbers: of its writer, its versions, its pins and its readers."""
    published(url, 1, namespace="left")
    with learner(url, "team/run") as publisher, exporter("--interval", "1") as running:
        for number in range(1, 4):
            publisher.publish(state(number)).wait(WAIT)
            if number == 1:
                fetched(url, "team/run", "slow")
        fetched(url, "team/run", "quick")
        with closing(History(open_store(url), "team/run")) as history:
            history.pin("best")
            history.pin("also-best")
        running.until("namespace_pinned_versions", "team/run", 1)
        found = running.until("namespace_learner_up", "team/run", 1)
        running.until("namespace_learner_up", "left", 0)
        text = running.text()
        number = publisher.generation
    assert found["exporter_store_up"] == {"": 1}
    assert found["namespace_generation"]["team/run"] == number
    assert found["namespace_version_number"] == {"team/run": 3, "left": 1}
    assert found["namespace_versions"] == {"team/run": 3, "left": 1}
    assert found["namespace_pinned_versions"] == {"team/run": 1, "left": 0}
    assert found["namespace_unreadable_versions"] == {"team/run": 0, "left": 0}
    assert found["namespace_readers"] == {"team/run": 2, "left": 0}
    assert found["namespace_readers_behind"] == {"team/run": 1, "left": 0}
    assert found["namespace_reader_lag_versions"] == {"team/run": 2, "left": 0}
    assert 0 < found["namespace_reader_lag_seconds"]["team/run"] < WAIT
    assert 0 <= found["namespace_version_age_seconds"]["team/run"] < WAIT
    assert found["namespace_state_bytes"]["team/run"] > 2000
    assert found["namespace_writer_info"] == {"team/run": 1, "left": 1}
    assert f'pid="{os.getpid()}"' in text


def test_every_name_is_served(url: str) -> None:
    """The names are those of the table, with their kinds and help, once all is there."""
    with learner(url) as publisher, exporter("--interval", "1") as running:
        publisher.publish(state(1)).wait(WAIT)
        fetched(url)
        running.until("namespace_learner_up", "team/run", 1)
        families = {f.name: f for f in text_string_to_metric_families(running.text())}
    table = {each.name.removesuffix("_total"): each for each in instruments.of("exporter")}
    assert families.keys() == table.keys()
    for name, family in families.items():
        assert family.type == {"info": "gauge"}.get(table[name].kind, table[name].kind)
        assert family.documentation == table[name].help
        for sample in family.samples:
            assert set(sample.labels) == set(table[name].all_labels)


def test_namespaces_come_and_go(url: str, cli: Cli) -> None:
    """A namespace that appears is served at the next look, and one that is removed is not."""
    with exporter("--interval", "1") as running:
        assert "namespace_versions" not in running.samples()
        published(url, 1, namespace="a")
        running.until("namespace_versions", "a", 1)
        cli("clear", "a", "--yes")
        running.until("namespace_versions", "a", None)


@pytest.mark.parametrize("word", ["", "a b\n", "x" * 300])
def test_a_namespace_that_can_be_none(url: str, cli: Cli, word: str) -> None:
    """What can not be a namespace is refused at once, not looked at for ever."""
    assert "namespace" in cli("exporter", "a", word, code=2).stderr


def test_some_namespaces_only(url: str) -> None:
    """With names as arguments nothing else is looked at."""
    for name in ("a", "b", "c"):
        published(url, 1, namespace=name)
    with exporter("a", "c", "nobody") as running:
        assert running.samples()["namespace_versions"].keys() == {"a", "c"}


def test_a_store_that_goes_down(url: str) -> None:
    """While the store is away that is told and nothing else is made up; then all is back."""
    with server("appendonly yes", "appendfsync always") as made:
        published(made.url, 1)
        with exporter("--url", made.url, "--interval", "1", "--timeout", "1") as running:
            assert running.samples()["exporter_store_up"] == {"": 1}
            made.kill()
            found = running.until("exporter_store_up", "", 0)
            assert "namespace_versions" not in found
            assert found["exporter_errors_total"]["network"] > 0
            assert found["exporter_look_timestamp_seconds"][""] < time.time()
            made.start()
            running.until("namespace_versions", "team/run", 1)


def test_a_store_that_is_down_from_the_start() -> None:
    """It starts all the same, and says so."""
    words = ("--url", "redis://127.0.0.1:1", "--timeout", "0.5")
    with exporter(*words) as running:
        found = running.samples()
        assert found["exporter_store_up"] == {"": 0}
        assert "exporter_look_timestamp_seconds" not in found
        assert running.process.poll() is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_when_it_is_told_to(url: str, number: signal.Signals) -> None:
    """SIGTERM and Ctrl-C end it with status 0, without a traceback."""
    with exporter() as running:
        running.process.send_signal(number)
        assert running.process.wait(WAIT) == 0
        assert running.process.stderr is not None
        assert running.process.stderr.read() == ""


def test_a_port_that_is_taken(url: str, cli: Cli) -> None:
    """The error names address and port."""
    with exporter() as running:
        port = running.url.split(":")[2].split("/")[0]
        result = cli("exporter", "--port", port, code=2)
    assert f"can not listen on 127.0.0.1:{port}" in result.stderr


def test_no_secret_shows(tmp_path: Path) -> None:
    """The password of the store is in nothing that it serves or prints, whatever fails."""
    path = tmp_path / "password"
    path.write_text(SECRET)
    with server(f"requirepass {SECRET}") as made:
        environment = {"REDIS_STATE_SYNC_URL": made.url}
        with exporter(**environment, REDIS_STATE_SYNC_PASSWORD_FILE=str(path)) as running:
            served = running.text()
        assert "exporter_store_up 1.0" in served
        with exporter(**environment, REDIS_STATE_SYNC_PASSWORD=f"not-{SECRET}") as running:
            refused = running.text()
            running.process.terminate()
            assert running.process.stderr is not None
            printed = running.process.stderr.read()
    assert "exporter_store_up 0.0" in refused
    assert 'category="auth"' in refused
    assert SECRET not in served + refused + printed


def looker(store: object, *names: str, **settings: float) -> Looker:
    """One that looks when it is told to."""
    settings = {"interval_s": 3600.0, "forget_readers_s": 300.0, **settings}
    return Looker(store, names, timeout_s=WAIT, **settings)  # type: ignore[arg-type]


def test_readers_that_are_gone() -> None:
    """A reader that has been behind for long counts no more; one that is up to date always does."""
    store, now = MemoryStore(), time.time_ns() // 1_000_000
    with publishing(store, history=1) as publisher:
        publisher.publish(state(1)).wait(WAIT)
        version = publisher.publish(state(2)).wait(WAIT)
        publisher.flush(WAIT)
        generation, hour = version.generation, 3_600_000
        for name, held, time_ms in (
            ("gone", Version(generation, 1 - 1), now - hour),
            ("behind", Version(generation, 1), now - hour),
            ("idle", version, now - hour),
        ):
            note = note_of(held, time_ms)
            store.note_reader(publisher.keys, name, note, ttl_s=1e6, timeout=WAIT)
        with closing(looker(store)) as looks:
            (seen,) = looks.latest.namespaces
    lags = {reader.name: lag for reader, lag in zip(seen.readers, seen.lags_s, strict=True)}
    assert lags.keys() == {"behind", "idle"}
    # Version 2 came a moment ago, so that is how long its successor has been missing.
    assert 0 <= lags["behind"] < WAIT
    assert lags["idle"] == 0


def test_one_namespace_that_can_not_be_read() -> None:
    """What fails in one namespace is counted, and the others are served."""
    store = ScriptedStore(MemoryStore())
    for name in ("a", "b"):
        with publishing(store, name) as publisher:
            publisher.publish(state(1)).wait(WAIT)
    with closing(looker(store, "a", "b")) as looks:
        store.fail_next("readers", StorePermissionError("no"))
        look = looks.look()
        assert look.up
        assert [seen.overview.namespace for seen in look.namespaces] == ["b"]
        assert look.errors == {"permission": 1}
        store.fail_next("readers", StoreTimeoutError("no"))
        look = looks.look()
        assert not look.up
        assert look.namespaces == ()
        assert look.errors == {"permission": 1, "timeout": 1}


def test_a_defect_does_not_end_it(caplog: pytest.LogCaptureFixture) -> None:
    """An error that nobody expected is counted and logged, and the next look is made."""
    store = ScriptedStore(MemoryStore())
    with publishing(store) as publisher:
        publisher.publish(state(1)).wait(WAIT)
        with closing(looker(store)) as looks:
            store.fail_next("pins", ZeroDivisionError("a defect"))
            look = looks.look()
            assert not look.up
            assert look.errors == {"other": 1}
            assert "a defect" in caplog.text
            assert looks.look().up


def test_one_line_for_each_outage(caplog: pytest.LogCaptureFixture) -> None:
    """However many looks fail, the log has one line, and one more when the store is back."""
    store = ScriptedStore(MemoryStore())
    with closing(looker(store)) as looks:
        store.go_down(StoreTimeoutError("no answer"))
        for _ in range(3):
            assert not looks.look().up
        store.come_back()
        for _ in range(3):
            assert looks.look().up
    assert ["no answer" in record.getMessage() for record in caplog.records] == [True, False]


def test_json(url: str) -> None:
    """With --json the line on stdout is JSON, and says where it serves."""
    command = [sys.executable, "-m", "redis_state_sync.cli.main", "exporter", "--port", "0"]
    with subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        with urllib.request.urlopen(told["url"], timeout=WAIT) as reply:  # noqa: S310 - http
            assert b"exporter_store_up 1.0" in reply.read()
        process.terminate()
        assert process.wait(WAIT) == 0
