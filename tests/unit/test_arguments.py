"""What publishers and subscribers are made with is checked where they are made."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import redis

from redis_state_sync import Settings, SettingsError, StatePublisher, StateSubscriber
from redis_state_sync.errors import EncodeError
from redis_state_sync.memory_store import MemoryStore
from tests.unit.states import WAIT, Reader, publishing

BAD_SECONDS = [0, -1, float("nan"), float("inf"), "1", True]


@pytest.mark.parametrize("make", [StatePublisher, StateSubscriber])
@pytest.mark.parametrize("store", ["redis://h", None, redis.Redis()], ids=["url", "none", "client"])
def test_what_is_no_store(make: Any, store: Any) -> None:
    """A URL or a client in the place of a store is refused at once, with the remedy."""
    with pytest.raises(SettingsError, match=r"open_store.*from_client"):
        make(store, "n")


@pytest.mark.parametrize("bad", BAD_SECONDS, ids=str)
@pytest.mark.parametrize(
    "name", ["ttl_s", "connect_timeout_s", "transfer_timeout_s", "heartbeat_s"]
)
def test_a_publishers_durations(name: str, bad: Any) -> None:
    """A duration that is no positive finite number is refused by its name."""
    with pytest.raises(SettingsError, match=f"^{name} must be"):
        StatePublisher(MemoryStore(), "n", **{name: bad})


@pytest.mark.parametrize("bad", BAD_SECONDS, ids=str)
@pytest.mark.parametrize(
    "name",
    [
        *("poll_timeout_s", "first_timeout_s", "transfer_timeout_s", "ttl_s"),
        *("max_staleness_s", "stale_wait_s"),
    ],
)
def test_a_subscribers_durations(name: str, bad: Any) -> None:
    """A duration that is no positive finite number is refused by its name."""
    with pytest.raises(SettingsError, match=f"^{name} must be"):
        StateSubscriber(MemoryStore(), "n", **{name: bad})


LIMITS = [
    *(("max_staleness_versions", bad) for bad in (-1, "4", 1.0, True)),
    *(("on_stale", bad) for bad in ("", "ignore", None, True, [])),
]


@pytest.mark.parametrize(("name", "bad"), LIMITS)
@pytest.mark.parametrize("make", [Settings, functools.partial(StateSubscriber, MemoryStore(), "n")])
def test_limits_of_staleness(make: Any, name: str, bad: Any) -> None:
    """Limits that can not be are refused by their name, in settings and by a reader."""
    with pytest.raises(SettingsError, match=f"^{name} must be"):
        make(**{name: bad})


@pytest.mark.parametrize("bad", [0, -1, "4", 1.0, True, None], ids=str)
def test_history(bad: Any) -> None:
    """A history that is no positive int is refused, before the namespace is taken over."""
    store = MemoryStore()
    with pytest.raises(SettingsError, match=r"^history must be"):
        StatePublisher(store, "n", history=bad)
    assert store._values == {}


@pytest.mark.parametrize("bad", [print, [1], 5], ids=["function", "no callable", "int"])
@pytest.mark.parametrize("make", [StatePublisher, StateSubscriber])
def test_observers(make: Any, bad: Any) -> None:
    """Observers that could never be called are refused."""
    with pytest.raises(SettingsError, match=r"^observers must be"):
        make(MemoryStore(), "n", observers=bad)


def test_who_writes_and_who_reads() -> None:
    """Writer ids are str: a record that no reader could read is never written."""
    with pytest.raises(SettingsError, match=r"^writer_id must be"):
        StatePublisher(MemoryStore(), "n", writer_id=5)  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match=r"^writer must be"):
        StateSubscriber(MemoryStore(), "n", writer=5)  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", ["!resend", 5], ids=str)
def test_a_readers_name(bad: Any) -> None:
    """No reader can be called as the field that asks for blobs."""
    with pytest.raises(SettingsError, match=r"^name must be"):
        StateSubscriber(MemoryStore(), "n", name=bad)


@pytest.mark.parametrize("bad", ["text", ["rl_module/p"], None, 5], ids=str)
def test_components_are_a_mapping(bad: Any) -> None:
    """Anything but a mapping of names to trees is refused with an example."""
    says = r"components must map .*rl_module"
    with publishing(MemoryStore()) as publisher, pytest.raises(SettingsError, match=says):
        publisher.publish(bad)


def test_a_name_that_no_record_can_hold() -> None:
    """A component's name with a lone surrogate is refused, and what comes after it is stored."""
    store = MemoryStore()
    with publishing(store) as publisher:
        with pytest.raises(EncodeError, match="component name"):
            publisher.publish({"a\ud800": 1})
        publisher.publish({"ä/\N{GRINNING FACE}": 1}).wait(WAIT)
    snapshot = Reader(store).refresh()
    assert snapshot is not None
    assert dict(snapshot) == {"ä/\N{GRINNING FACE}": 1}
