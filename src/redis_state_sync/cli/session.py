"""From options to a store, and from errors to an exit status."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from redis_state_sync.backends import store_from
from redis_state_sync.cli.exit_codes import exit_code_of
from redis_state_sync.endpoint import REMEDY, parse_url
from redis_state_sync.errors import RedisStateSyncError, SettingsError
from redis_state_sync.history import History
from redis_state_sync.settings import Settings
from redis_state_sync.store import Store


@contextmanager
def reporting(as_json: bool) -> Iterator[None]:
    """Errors of this package become a line on stderr, with JSON one on stdout, and a status."""
    try:
        yield
    except RedisStateSyncError as error:
        if as_json:
            found = {"error": {"category": error.category, "message": str(error)}}
            print(json.dumps(found, ensure_ascii=False))
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(exit_code_of(error)) from None


def settings_of(url: str | None, timeout: float) -> Settings:
    """Settings for a URL from the command line; None: the environment's.

    Raises:
        SettingsError: If it holds a password, or is none.
    """
    if url is not None and parse_url(url).password is not None:
        raise SettingsError(
            "the URL on the command line holds a password, which every process of this host can "
            f"read: take it out of the URL and {REMEDY}"
        )
    return Settings.create(url=url, connect_timeout_s=timeout)


@contextmanager
def opened(url: str | None, timeout: float, *, as_json: bool) -> Iterator[Store]:
    """A store, and its errors reported."""
    with reporting(as_json):
        store = store_from(settings_of(url, timeout))
        try:
            yield store
        finally:
            store.close()


@contextmanager
def history(namespace: str, url: str | None, timeout: float, *, as_json: bool) -> Iterator[History]:
    """The history of one namespace, and its errors reported."""
    with opened(url, timeout, as_json=as_json) as store:
        yield History(store, namespace, timeout_s=timeout)
