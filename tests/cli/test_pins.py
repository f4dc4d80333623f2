"""`pin`, `unpin` and `rollback`."""

from __future__ import annotations

from contextlib import closing

from redis_state_sync import StateSubscriber, open_store
from tests.cli.conftest import Cli, learner, published, read, state

WAIT = 20.0


def test_pin_and_unpin(cli: Cli, url: str) -> None:
    """A version is pinned by number, by another pin's name, or as the newest, and unpinned."""
    first, second = published(url, 1, 2)
    assert f"pinned {second} as last" in cli("pin", "team/run", "last").stdout
    found = read(cli("pin", "team/run", "first", first, "--json"))
    assert found == {"namespace": "team/run", "pin": "first", "version": str(first)}
    cli("pin", "team/run", "again", "first")
    pins = read(cli("status", "team/run", "--json"))["pins"]
    assert pins == {"last": str(second), "first": str(first), "again": str(first)}
    assert f"unpinned again, which was {first}" in cli("unpin", "team/run", "again").stdout
    assert read(cli("unpin", "team/run", "first", "--json"))["version"] == str(first)
    assert read(cli("status", "team/run", "--json"))["pins"] == {"last": str(second)}


def test_what_can_not_be_pinned(cli: Cli, url: str) -> None:
    """An unknown version or pin ends with its own status, and names those that there are."""
    (version,) = published(url, 1)
    for words in (("pin", "team/run", "x", "5-5"), ("unpin", "team/run", "x")):
        result = cli(*words, code=4)
        assert str(version) in result.stderr
        assert result.stdout == ""
        found = read(cli(*words, "--json", code=4))
        assert found["error"]["category"] == "settings"
        assert str(version) in found["error"]["message"]
    assert "pin name" in cli("pin", "team/run", "5-5", code=2).stderr
    assert "namespace" in cli("pin", "{x}", "name", code=2).stderr


def test_rollback(cli: Cli, url: str) -> None:
    """An old state becomes the newest; beside a learner at work only if that is asked for."""
    first, second = published(url, 1, 2)
    cli("pin", "team/run", "good", first)
    found = read(cli("rollback", "team/run", "good", "--json"))
    assert found["state_of"] == str(first)
    assert found["version"] > str(second)
    with closing(StateSubscriber(open_store(url), "team/run")) as subscriber:
        snapshot = subscriber.fetch(timeout=WAIT)
        assert snapshot is not None
        assert (str(snapshot.version), snapshot["counters"]) == (found["version"], {"steps": 1})
    with learner(url) as publisher:
        publisher.publish(state(3)).wait(WAIT)
        result = cli("rollback", "team/run", "good", code=5)
        assert "a learner is at work" in result.stderr
        assert publisher.publish(state(4)).wait(WAIT)
        cli("rollback", "team/run", "good", "--take-over")
    versions = read(cli("versions", "team/run", "--json"))["versions"]
    assert versions[0]["weights_seq_no"] == 1
    assert versions[0]["writer"]["id"].startswith("rollback by ")
    assert read(cli("status", "team/run", "--json"))["pins"] == {"good": str(first)}
