"""Observers hear of everything, and can harm nothing."""

from __future__ import annotations

import logging

import pytest

from redis_state_sync import Version
from redis_state_sync.events import Applied, Event, notify


def test_every_observer_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """An observer that raises is logged and keeps no other from being told."""
    heard: list[Event] = []

    def bad(event: Event) -> None:
        raise RuntimeError("observer broke")

    event = Applied(Version(1, 1), 0.5)
    with caplog.at_level(logging.ERROR, "redis_state_sync"):
        notify([heard.append, bad, heard.append], event)
    assert heard == [event, event]
    assert "observer broke" in caplog.text


def test_only_exceptions_are_caught() -> None:
    """Ctrl-C within an observer ends the program as anywhere else."""

    def interrupted(event: Event) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        notify([interrupted], Applied(Version(1, 1), 0.5))
