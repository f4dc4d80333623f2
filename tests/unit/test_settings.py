"""Settings: every wrong value is named, and no secret gets in."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any

import pytest

from redis_state_sync import Settings, SettingsError

SECONDS = [f.name for f in dataclasses.fields(Settings) if f.name.endswith("_s")]


@pytest.mark.parametrize("name", SECONDS)
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), "1", True, [], 1j], ids=str)
def test_seconds(name: str, value: Any) -> None:
    """A duration that is no positive finite number is refused by its name."""
    with pytest.raises(SettingsError, match=f"^{name} must be"):
        Settings(**{name: value})


OPTIONAL = ("max_staleness_s", "refresh_every_s")


@pytest.mark.parametrize("name", [n for n in SECONDS if n not in OPTIONAL])
def test_seconds_can_not_be_none(name: str) -> None:
    """Only a few durations may be None."""
    with pytest.raises(SettingsError, match=f"^{name} must be"):
        Settings(**{name: None})


@pytest.mark.parametrize("name", OPTIONAL)
def test_seconds_may_be_none(name: str) -> None:
    """These may."""
    assert getattr(Settings(**{name: None}), name) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("refresh", value) for value in ("", "step", None, 1, True)),
        *(("refresh_every_steps", value) for value in (0, -1, 1.0, "1", True, None)),
        *(("prefetch", value) for value in (0, 1, "yes")),
    ],
)
def test_refreshing(name: str, value: Any) -> None:
    """What says when to refresh is checked, and named with its value."""
    with pytest.raises(SettingsError, match=f"^{name} must be .*{value!r}$"):
        Settings(**{name: value})


@pytest.mark.parametrize("refresh", ["sample", "episode", "steps"])
@pytest.mark.parametrize("prefetch", [None, False, True])
def test_prefetching_goes_with_in_flight(refresh: Any, prefetch: bool | None) -> None:
    """It is on where weights are refreshed in flight, unless the settings say otherwise."""
    settings = Settings(refresh=refresh, prefetch=prefetch)
    assert settings.in_flight == (refresh != "sample")
    assert settings.prefetches == (settings.in_flight if prefetch is None else prefetch)


def test_huge_ints_are_seconds() -> None:
    """An int too large for a float is no crash."""
    assert Settings(transfer_timeout_s=10**400).transfer_timeout_s == 10**400


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"url": 5}, "must be a str"),
        ({"url": "ftp://h"}, "unknown scheme"),
        ({"namespace": "a b"}, "namespace"),
        ({"namespace": 5}, "namespace"),
        ({"password_env": ""}, "password_env"),
        ({"password_env": None}, "password_env"),
        ({"credential_provider": "nocolon"}, "package.module:name"),
        ({"credential_provider": object()}, "package.module:name"),
        ({"history": 0}, "history"),
        ({"history": 1.0}, "history"),
        ({"history": True}, "history"),
        ({"ttl_s": 9}, "at least 10"),
        ({"max_state_bytes": 0}, "max_state_bytes"),
        ({"max_state_bytes": 2**36 + 1}, "max_state_bytes"),
        ({"max_state_bytes": 1e9}, "max_state_bytes"),
        ({"max_state_bytes": True}, "max_state_bytes"),
        ({"fallback_to_push": 1}, "fallback_to_push"),
        ({"mode": "fast"}, "mode"),
        ({"mode": []}, "mode"),
        ({"role": "reader"}, "role must be 'learner' or 'follower'"),
        ({"role": None}, "role must be"),
        ({"role": "follower"}, "what to follow: pass namespace"),
        ({"role": "follower", "namespace": "n", "resume": True}, "resume is for a learner"),
        ({"resume": 1}, "resume must be True or False"),
        ({"first_version_timeout_s": 0}, "first_version_timeout_s"),
    ],
)
def test_refuses(change: dict[str, Any], says: str) -> None:
    """A wrong value is refused by its name."""
    with pytest.raises(SettingsError, match=says):
        Settings(**change)


@pytest.mark.parametrize(
    "url",
    ["redis://u:hunter2@h", "redis://:hunter2@h", "redis://h?password=hunter2",
     "unix://:hunter2@/s", "redis+sentinel://:hunter2@h/svc", "memory://x?password=hunter2",
     "embedded://:hunter2@h:1"],
)  # fmt: skip
def test_refuses_passwords(url: str) -> None:
    """A URL with a password never gets into settings: C96. The message is without it."""
    with pytest.raises(SettingsError) as caught:
        Settings(url=url)
    assert "hunter2" not in str(caught.value)


def test_the_remedy_is_named() -> None:
    """Whoever put a password into the URL reads how to give it instead: C96."""
    with pytest.raises(SettingsError, match="REDIS_STATE_SYNC_PASSWORD_FILE"):
        Settings(url="redis://:pw@h")


def test_unknown_names() -> None:
    """An unknown setting is refused with the known ones."""
    with pytest.raises(SettingsError, match=r"unknown setting 'histroy'.*history"):
        Settings.create(histroy=3)
    with pytest.raises(SettingsError, match="unknown setting 'nope'"):
        Settings().replace(nope=3)


def test_roles() -> None:
    """A config is of a learner unless it is told to follow."""
    assert not Settings().follows
    assert Settings(role="follower", namespace="n").follows


def test_replace_checks() -> None:
    """A changed copy is checked as a new one is, and the original stays."""
    settings = Settings(url="redis://h")
    assert settings.replace(history=9).history == 9
    assert settings.history == 4
    with pytest.raises(SettingsError):
        settings.replace(history=0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.history = 3  # type: ignore[misc]


def test_survives_copies() -> None:
    """Settings survive copy, deepcopy and pickle, equal and hashable: C89, C91."""
    settings = Settings(url="redis://h", namespace="n", max_staleness_s=3.0)
    for other in (
        copy.copy(settings),
        copy.deepcopy(settings),
        pickle.loads(pickle.dumps(settings)),
    ):
        assert other == settings
        assert hash(other) == hash(settings)
