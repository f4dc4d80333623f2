"""RLlib trains while its EnvRunners, its server and its driver are killed."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from redis_state_sync import Snapshot, StateSubscriber, Version, open_store
from tests.chaos.bounds import Refresh, longest
from tests.chaos.descendants import Known, descendants, end
from tests.chaos.journal import Line
from tests.chaos.members import Member
from tests.chaos.server import Server
from tests.chaos.stalls import Watch

pytest.importorskip("ray")

NAMESPACE = "chaos/rllib"
# Ray alone may take most of it on a loaded machine.
PATIENCE_S = 120.0


class Follower:
    """Another job's reader: follows whoever trains, and notes what must not be."""

    def __init__(self, url: str) -> None:
        self.applied: list[tuple[Version, str]] = []
        self.wrong: list[str] = []
        self.worst_s = 0.0
        self._watch = Watch(lambda start, end: None)
        self._subscriber = StateSubscriber(open_store(url), NAMESPACE, name="follower")
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    @property
    def held(self) -> Version | None:
        return self._subscriber.held

    def close(self) -> None:
        self._done.set()
        self._thread.join()
        self._subscriber.close()

    def _run(self) -> None:
        first = True
        try:
            while not self._done.is_set():
                started = time.monotonic()
                snapshot = self._subscriber.refresh(self._apply)
                ended = time.monotonic()
                took = ended - started - self._watch.within(started, ended)
                if snapshot is None and not first:
                    self.worst_s = max(self.worst_s, took)
                first = False
                self._done.wait(0.01)
        except Exception as error:
            self.wrong.append(repr(error))

    def _apply(self, snapshot: Snapshot) -> None:
        state = {name: snapshot[name] for name in snapshot}
        if not {"rl_module/default_policy", "env_to_module_connector"} <= state.keys():
            self.wrong.append(f"{snapshot.version} holds {sorted(state)} only")
        self.applied.append((snapshot.version, snapshot.manifest.writer.id))


class Drivers:
    """One driver after the other."""

    def __init__(self, folder: Path, url: str) -> None:
        self._folder = folder
        self._url = url
        self.all: list[Member] = []
        self._started: list[Known] = []

    def start(self) -> Member:
        options = {"url": self._url, "namespace": NAMESPACE}
        name = f"driver-{len(self.all) + 1}"
        self.all.append(Member(name, self._folder, "tests.chaos.driver", options))
        self.wait(lambda: self.all[-1].told("claimed"), f"{name} that has claimed")
        return self.all[-1]

    def kill(self) -> None:
        """SIGKILL of the last one."""
        self._started += descendants(self.all[-1].pid)
        self.all[-1].signal(signal.SIGKILL)

    def close(self) -> None:
        """Ends all, and what Ray started for them."""
        for driver in self.all:
            if driver.exit_code is None:
                self._started += descendants(driver.pid)
            driver.end(30.0)
        # Without its driver, Ray ends by itself, though not always soon.
        end(self._started, 10.0)

    def wait(self, true: Callable[[], Any], what: str) -> Any:
        """Waits until something is so, while the last driver lives."""
        driver, deadline = self.all[-1], time.monotonic() + PATIENCE_S
        while True:
            driver.look()
            found = true()
            if found:
                return found
            assert driver.exit_code is None, driver.log.read_text(errors="replace")[-3000:]
            assert time.monotonic() < deadline, f"{what}: not within {PATIENCE_S:g} s"
            time.sleep(0.05)

    def trained(self, true: Callable[[Line], Any], what: str) -> Line:
        """Waits for another iteration of training with some result."""
        driver = self.all[-1]
        driver.look()
        seen = len(driver.lines)

        def found() -> list[Line]:
            return [li for li in driver.lines[seen:] if li["ev"] == "trained" and true(li)]

        line: Line = self.wait(found, what)[0]
        return line


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path)
    yield made
    made.close()


@pytest.fixture
def drivers(tmp_path: Path, server: Server) -> Iterator[Drivers]:
    made = Drivers(tmp_path, server.url)
    yield made
    made.close()


@pytest.fixture
def follower(server: Server) -> Iterator[Follower]:
    made = Follower(server.url)
    yield made
    made.close()


@pytest.mark.ray
@pytest.mark.timeout(300)
def test_training_outlives_what_is_killed(
    server: Server, drivers: Drivers, follower: Follower
) -> None:
    """EnvRunner, server and driver are killed: training goes on, readers never go back. C11 C24"""
    first = drivers.start()
    steps = drivers.trained(lambda li: li["steps"] > 0, "steps")["steps"]
    drivers.wait(lambda: follower.held, "a version that the follower holds")

    first.order("kill a runner")
    line = drivers.trained(
        lambda li: li["restarts"] >= 1 and li["healthy"] == 2, "an EnvRunner that is back"
    )
    assert line["steps"] > steps
    drivers.trained(lambda li: li["steps"] > line["steps"], "more steps")

    held = follower.held
    server.kill()
    line = drivers.trained(lambda li: not li["up"] and li["pushes"] > 0, "pushes in its place")
    server.start_empty()
    up = drivers.trained(lambda li: li["up"], "a store that is up")
    assert up["steps"] > line["steps"]
    assert up["failures"]
    drivers.wait(lambda: follower.held != held, "a version of after the outage")
    assert follower.held is not None
    assert held is not None
    assert follower.held > held

    generation = follower.held.generation
    drivers.kill()
    second = drivers.start()
    assert second is not first
    line = drivers.trained(lambda li: li["steps"] > 0, "steps of the second driver")
    drivers.trained(lambda li: li["steps"] > line["steps"], "more steps of it")
    drivers.wait(lambda: follower.held and follower.held.generation > generation, "its versions")
    second.order("stop")
    drivers.wait(lambda: second.exit_code is not None, "a driver that has stopped")
    assert second.exit_code == 0

    assert follower.wrong == []
    versions = [version for version, _ in follower.applied]
    assert versions == sorted(set(versions))
    claims = [driver.told("claimed") for driver in drivers.all]
    assert {v.generation for v in versions} == {c["generation"] for c in claims if c}
    writers = {(v.generation, writer) for v, writer in follower.applied}
    assert len({writer for _, writer in writers}) == len(writers) == 2
    # Without a snapshot: a poll, and perhaps a fetch that was given up.
    nothing = Refresh(polls=1, polled_s=0.0, fetches=1, notes=0, bytes=0, first=False, shared=True)
    assert follower.worst_s < longest(nothing, slow_line=False)
