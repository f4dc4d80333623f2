"""`clear`: removes one namespace, after it asked."""

from __future__ import annotations

from redis_state_sync import open_store
from tests.cli.conftest import WAIT, Cli, learner, published, read, state


def names(url: str) -> list[str]:
    (found,) = open_store(url)._run("test", [("KEYS", "*")], WAIT)  # type: ignore[attr-defined]
    return sorted(name.decode() for name in found)


def test_it_asks(cli: Cli, url: str) -> None:
    """Nothing goes unless one says yes; what would go is said before."""
    published(url, 1, 2)
    cli("pin", "team/run", "best")
    before = names(url)
    for answer in ("n\n", "\n", ""):
        result = cli("clear", "team/run", answer=answer, code=1)
        assert "all 2 versions, of which 1 are pinned, of team/run at unix://" in result.output
        assert names(url) == before
    assert "add --yes" in cli("clear", "team/run", "--json", code=2).stderr
    assert names(url) == before
    assert "removed team/run: " in cli("clear", "team/run", answer="y\n").stdout
    assert names(url) == []


def test_only_its_own_keys(cli: Cli, url: str) -> None:
    """Other namespaces and other people's keys stay."""
    published(url, 1, namespace="a")
    published(url, 1, namespace="a/b")
    open_store(url)._run("test", [("SET", "rss:{a}:other", "x"), ("SET", "a", "x")], WAIT)  # type: ignore[attr-defined]
    before = names(url)
    found = read(cli("clear", "a", "--yes", "--json"))
    gone = {*before} - {*names(url)}
    assert found == {"namespace": "a", "removed_keys": len(gone)}
    assert gone == {n for n in before if n.startswith("rss:{a}:") and n != "rss:{a}:other"}
    assert [n["namespace"] for n in read(cli("list", "--json"))["namespaces"]] == ["a/b"]
    assert "holds nothing" in cli("clear", "a", "--yes", code=4).stderr


def test_beside_a_learner(cli: Cli, url: str) -> None:
    """A learner at work would publish again: it is to be stopped first."""
    with learner(url) as publisher:
        publisher.publish(state(1)).wait(WAIT)
        publisher.flush(WAIT)
        before = names(url)
        assert "stop it first" in cli("clear", "team/run", "--yes", code=5).stderr
        assert names(url) == before
