"""`list`, `status` and `versions`."""

from __future__ import annotations

import pytest

from redis_state_sync import History, open_store
from redis_state_sync.keys import Keys
from redis_state_sync.version import Version
from tests.cli.conftest import Cli, fetched, learner, published, read, state

WAIT = 20.0


def test_an_empty_server(cli: Cli, url: str) -> None:
    """Where there is nothing, `list` says so and does not fail, and `status` names the remedy."""
    assert read(cli("list", "--json"))["namespaces"] == []
    assert f"no namespace at {url}" in cli("list").stdout
    for command in ("status", "versions"):
        result = cli(command, "team/run", code=4)
        assert "holds nothing" in result.stderr
        assert "redis-state-sync list" in result.stderr


def test_list(cli: Cli, url: str) -> None:
    """Every namespace is listed, sorted, with its newest version; other keys are not."""
    (first,) = published(url, 1, namespace="b")
    second = published(url, 1, 2, namespace="a")[-1]
    History(open_store(url), "pins-only").store.set_pin(
        Keys("pins-only"), "gone", Version(1, 1), timeout=WAIT
    )
    store = open_store(url)
    store._run("test", [("SET", "rss:{c}:other", "x"), ("SET", "celery", "x")], WAIT)  # type: ignore[attr-defined]
    found = read(cli("list", "--json"))["namespaces"]
    assert [each["namespace"] for each in found] == ["a", "b", "pins-only"]
    assert [each["newest"] and each["newest"]["version"] for each in found] == [
        str(second), str(first), None,
    ]  # fmt: skip
    assert [each["versions"] for each in found] == [2, 1, 0]
    assert [each["pins"] for each in found] == [{}, {}, {"gone": "1-1"}]
    lines = cli("list").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["namespace", "a", "b", "pins-only"]
    assert str(second) in lines[1]


def test_status(cli: Cli, url: str) -> None:
    """Writer, generation, version, age, sizes, and who reads and is how far behind."""
    with learner(url) as publisher:
        publisher.publish(state(1), weights_seq_no=7).wait(WAIT)
        fetched(url, name="slow")
        publisher.publish(state(2), weights_seq_no=8).wait(WAIT)
        version = publisher.publish(state(3), weights_seq_no=9).wait(WAIT)
        fetched(url, name="quick")
        cli("pin", "team/run", "best")
        found = read(cli("status", "team/run", "--json"))
        shown = cli("status", "team/run").stdout
    newest = found["newest"]
    assert found["learner_at_work"] is True
    assert found["generation"] == version.generation
    assert (newest["version"], newest["weights_seq_no"]) == (str(version), 9)
    assert newest["writer"]["id"] == publisher.writer.id
    assert -60 < newest["age_s"] < 60
    assert newest["components"].keys() == state(0).keys()
    assert newest["size"] == sum(newest["components"].values()) > 2000
    assert found["pins"] == {"best": str(version)}
    assert {r["name"]: (r["version"], r["lag"]) for r in found["readers"]} == {
        "quick": (str(version), 0),
        "slow": (f"{version.generation}-1", 2),
    }
    assert 80_000 < found["expires_in_s"] <= 86_400
    for text in ("at work", str(version), "rl_module/p", "slow", f"best = {version}", "KiB"):
        assert text in shown


def test_status_of_a_dead_learner(cli: Cli, url: str) -> None:
    """A learner that is gone is not said to be at work; one that only claimed is named."""
    (version,) = published(url, 1)
    fetched(url)
    found = read(cli("status", "team/run", "--json"))
    assert found["learner_at_work"] is False
    assert found["claimed_by"] is None
    assert "no sign of one" in cli("status", "team/run").stdout
    with learner(url) as publisher:
        found = read(cli("status", "team/run", "--json"))
        assert found["learner_at_work"] is True
        assert found["claimed_by"]["id"] == publisher.writer.id
        assert found["generation"] == publisher.generation > version.generation
        assert "has not published yet" in cli("status", "team/run").stdout
        publisher.publish(state(2)).wait(WAIT)
        # What it holds is of another learner: no number says how far behind that is.
        (reader,) = read(cli("status", "team/run", "--json"))["readers"]
        assert reader["lag"] is None
        assert "another learner's" in cli("status", "team/run").stdout


def test_versions(cli: Cli, url: str) -> None:
    """All versions, newest first, with pins, sizes and counters; what can not be read says why."""
    versions = published(url, 1, 2, 3)
    cli("pin", "team/run", "best", versions[0])
    cli("pin", "team/run", "also", versions[0])
    broken = Version(versions[-1].generation, 99)
    open_store(url).append(Keys("team/run"), broken, b"garbage", ttl_s=100, timeout=WAIT)
    found = read(cli("versions", "team/run", "--json"))["versions"]
    assert [v["version"] for v in found] == [str(v) for v in (broken, *versions[::-1])]
    assert [v["pins"] for v in found] == [[], [], [], ["also", "best"]]
    assert [v.get("weights_seq_no") for v in found] == [None, 3, 2, 1]
    assert found[0]["problem"].startswith("manifest is")
    lines = cli("versions", "team/run").stdout.splitlines()
    assert len(lines) == 5
    assert "manifest is" in lines[1]
    assert "also, best" in lines[4]
    shown = cli("status", "team/run").stdout
    assert "problem" in shown


@pytest.mark.parametrize("name", ["[bold]x", "[/]", "a[red]b"])
def test_names_are_no_markup(cli: Cli, url: str, name: str) -> None:
    """What others wrote into the store is shown as it is."""
    published(url, 1)
    fetched(url, name=name)
    assert name in cli("status", "team/run").stdout
