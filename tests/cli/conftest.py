"""The command line on a real server, within this process."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from typer.testing import CliRunner

from redis_state_sync import StatePublisher, StateSubscriber, Version, open_store
from redis_state_sync.cli.app import app
from redis_state_sync.embedded import EmbeddedServer
from tests.contract.servers import free_port, start, valkey_binary

WAIT = 20.0


@pytest.fixture(scope="session")
def _server() -> Iterator[EmbeddedServer]:
    port = free_port()
    with start(valkey_binary(), port=port) as server:
        yield server


@pytest.fixture
def url(_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """A server that holds nothing, and that the environment names."""
    store = open_store(_server.url)
    store._run("test", [("FLUSHALL",)], WAIT)  # type: ignore[attr-defined]
    store.close()
    monkeypatch.setenv("REDIS_STATE_SYNC_URL", _server.url)
    monkeypatch.setenv("COLUMNS", "200")
    return _server.url


Cli = Callable[..., Result]


@pytest.fixture
def cli(url: str) -> Cli:
    """Runs a command; `code` is the exit status that it must end with."""

    def call(*words: object, code: int = 0, answer: str | None = None) -> Result:
        result = CliRunner().invoke(app, [str(word) for word in words], input=answer)
        assert result.exit_code == code, (result.output, result.exception)
        if result.exception is not None:
            assert isinstance(result.exception, SystemExit), result.exception
        return result

    return call


def read(result: Result) -> Any:
    """What a command said with --json."""
    return json.loads(result.stdout)


def state(number: int) -> dict[str, Any]:
    return {
        "rl_module/p": {"w": np.full(500, number, np.float32)},
        "counters": {"steps": number},
    }


@contextmanager
def learner(url: str, namespace: str = "team/run", **settings: Any) -> Iterator[StatePublisher]:
    """A learner at work."""
    settings = {"history": 9, "heartbeat_s": 0.1, **settings}
    with closing(StatePublisher(open_store(url), namespace, **settings)) as publisher:
        yield publisher


def published(
    url: str, *numbers: int, namespace: str = "team/run", **settings: Any
) -> list[Version]:
    """What a learner left that is gone."""
    with learner(url, namespace, **settings) as publisher:
        return [publisher.publish(state(n), weights_seq_no=n).wait(WAIT) for n in numbers]


def fetched(url: str, namespace: str = "team/run", name: str = "reader") -> Version:
    """What a reader fetches, which leaves its note."""
    with closing(StateSubscriber(open_store(url), namespace, name=name)) as subscriber:
        snapshot = subscriber.fetch(timeout=WAIT)
        assert snapshot is not None
        return snapshot.version
