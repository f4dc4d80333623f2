"""`watch`: one namespace, live."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from redis_state_sync.cli import watch as module
from tests.cli.conftest import WAIT, Cli, fetched, learner, published, state
from tests.cli.test_doctor import server


def between(monkeypatch: pytest.MonkeyPatch, *steps: Callable[[], Any]) -> None:
    """What happens between one look and the next, in place of nothing."""
    left, sleep = list(steps), module.sleep

    def wait(seconds: float) -> None:
        if left:
            left.pop(0)()
        sleep(seconds)

    monkeypatch.setattr(module, "sleep", wait)  # Its own: other threads sleep, too.


def looks(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_versions_follow_each_other(cli: Cli, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look is a line; rate and learner are known from the second one on."""
    with learner(url) as publisher:
        publisher.publish(state(1)).wait(WAIT)

        def publish() -> None:
            for number in range(5):
                publisher.publish(state(number)).wait(WAIT)

        between(monkeypatch, publish)
        found = looks(cli("watch", "team/run", "--count", 3, "--json").stdout)
    assert [look["learner_at_work"] for look in found] == [None, True, True]
    assert found[0]["versions_per_s"] is None
    assert 1 < found[1]["versions_per_s"] < 5.1
    assert found[2]["versions_per_s"] == 0
    assert found[0]["newest"]["version"] != found[1]["newest"]["version"]


def test_a_learner_that_ends(cli: Cli, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """That nobody refreshes any more is seen; so is another learner."""
    published(url, 1)
    between(monkeypatch, lambda: None, lambda: published(url, 2))
    found = looks(cli("watch", "team/run", "--count", 3, "--json").stdout)
    assert [look["learner_at_work"] for look in found] == [None, False, True]
    assert [look["versions_per_s"] for look in found] == [None, 0, None]


def test_an_outage(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the server goes away the view says so, and goes on when it is back."""
    with server("appendonly yes", "appendfsync always") as made:
        published(made.url, 1)
        between(monkeypatch, made.kill, made.start)
        words = ("watch", "team/run", "--count", 3, "--url", made.url, "--timeout", 2)
        found = looks(cli(*words, "--json").stdout)
        assert "server.sock" in found[1]["problem"]
        assert found[0]["newest"] or found[2]
        assert found[2]["learner_at_work"] is None


@pytest.mark.parametrize("terminal", [True, False])
def test_for_people(cli: Cli, url: str, monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    """On a terminal one panel is drawn over and over, and left; elsewhere one follows the other."""
    (version,) = published(url, 1)
    if terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("TERM", "xterm-256color")
    shown = cli("watch", "team/run", "--count", 2).stdout
    plain = re.sub(r"\x1b\[[?\d;]*[a-zA-Z]", "", shown)
    assert plain.count(str(version)) == (3 if terminal else 2)  # At the end once more.
    assert ("\x1b[" in shown) == terminal
    assert ("╭" in shown) == terminal
    for text in ("team/run", "no sign of one", "0.0 versions/s", "rl_module/p"):
        assert text in plain


def test_nothing_is_erased(cli: Cli, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look is drawn over the one before it: nothing is blank in between, so nothing flickers."""
    published(url, 1)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    shown = cli("watch", "team/run", "--count", 3).stdout
    assert shown.count("\x1b[H") >= 3  # To the upper left corner, each time.
    for erasing in ("\x1b[2J", "\x1b[2K", "\x1b[K", "\x1b[J"):
        assert erasing not in shown


def test_without_colours(cli: Cli, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With NO_COLOR there are none, and how readers are can be told all the same."""
    with learner(url, history=1) as publisher:
        for number, name in enumerate(("stale", "quick")):
            publisher.publish(state(number)).wait(WAIT)
            fetched(url, name=name)
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("NO_COLOR", "1")
        monkeypatch.setenv("TERM", "xterm-256color")
        shown = cli("watch", "team/run", "--count", 1).stdout
    assert not re.search(r"\x1b\[(?:\d+;)*(?:3[0-7]|38|9[0-7])\b", shown)
    assert re.search(r"stale.* 1 ", shown)
    assert re.search(r"quick.*current", shown)


def test_ended_by_hand(cli: Cli, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C is how it ends, and no error."""
    published(url, 1)

    def interrupt() -> None:
        raise KeyboardInterrupt

    between(monkeypatch, interrupt)
    assert len(looks(cli("watch", "team/run", "--json").stdout)) == 1


def test_what_is_wrong_from_the_start(cli: Cli, url: str) -> None:
    """A namespace that holds nothing is an error, not an empty view."""
    assert "holds nothing" in cli("watch", "team/other", code=4).stderr
