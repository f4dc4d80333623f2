"""What a shell offers for namespaces, pins and versions: asked of the store, or nothing."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from typing import Protocol

from redis_state_sync.backends import store_from
from redis_state_sync.cli.session import settings_of
from redis_state_sync.history import History
from redis_state_sync.pinning import NEWEST
from redis_state_sync.store import Store

# For each question, and for all of it: who presses a key waits no longer.
_TIMEOUT_S = 0.4
_IN_ALL_S = 0.8
_MOST_VERSIONS = 20
# What a shell takes for nothing but a word: a pin's name may be `$(...)`, which would be run.
_HARMLESS = re.compile(r"[\w./:@%+=,-]+\Z", re.ASCII)


class Context(Protocol):
    """What a command line says so far, as typer knows it."""

    params: dict[str, object]


def namespaces(ctx: Context) -> list[str]:
    """The namespaces of the store. (typer takes those that begin as what was typed does.)"""
    return _offered(ctx, lambda store, _: store.namespaces(timeout=_TIMEOUT_S))


def pins(ctx: Context) -> list[str]:
    """The pins of the namespace."""
    return _offered(ctx, lambda store, name: sorted(_history(store, name).pins()))


def which(ctx: Context) -> list[str]:
    """What stands for a version of the namespace: pins, ``newest``, and the newest versions."""

    def found(store: Store, name: str) -> list[str]:
        history = _history(store, name)
        names = sorted(history.pins())
        entries = store.newest(history.keys, count=_MOST_VERSIONS, timeout=_TIMEOUT_S)
        return [NEWEST, *names, *(str(e.version) for e in entries if not e.version.is_claim)]

    return _offered(ctx, found)


def _history(store: Store, namespace: str) -> History:
    return History(store, namespace, timeout_s=_TIMEOUT_S)


def _offered(ctx: Context, ask: Callable[[Store, str], Iterable[str]]) -> list[str]:
    """The answers. Nothing at all if there is none in time, whatever the cause."""
    answers: list[str] = []
    url, namespace = ctx.params.get("url"), ctx.params.get("namespace")

    def look() -> None:
        # Between two keys nobody wants to read why not; the command itself will say it.
        with suppress(Exception):
            settings = settings_of(url if isinstance(url, str) else None, _TIMEOUT_S)
            with closing(store_from(settings)) as store:
                answers.extend(ask(store, str(namespace)))

    logging.disable()  # The same holds for warnings. This process ends with its answer.
    # A name may take long to be resolved, and no time-out covers that.
    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    thread.join(_IN_ALL_S)
    return [a for a in tuple(answers) if _HARMLESS.match(a)]
