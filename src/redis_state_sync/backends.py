"""From a URL to a store."""

from __future__ import annotations

import os
import threading
from typing import Any

from redis_state_sync.credentials import URL_ENV
from redis_state_sync.endpoint import Endpoint, parse_url
from redis_state_sync.errors import SettingsError
from redis_state_sync.memory_store import MemoryStore
from redis_state_sync.redis_store import RedisStore
from redis_state_sync.settings import Settings
from redis_state_sync.store import Store

_memory_stores: dict[str, MemoryStore] = {}
_memory_lock = threading.Lock()


def resolve_endpoint(settings: Settings) -> Endpoint:
    """The endpoint that the settings, or else the environment, name.

    Raises:
        SettingsError: If neither names one, or REDIS_STATE_SYNC_URL can not be parsed.
    """
    if settings.url is None and not os.environ.get(URL_ENV, "").strip():
        raise SettingsError(
            f"no store URL: pass url='redis://host:6379/0', or set {URL_ENV} in the environment "
            "of the driver and of every EnvRunner"
        )
    # No variable holds it: printers that show local variables would show its password.
    return parse_url(os.environ[URL_ENV] if settings.url is None else settings.url)


def open_store(url: str | None = None, **settings: Any) -> Store:
    """Opens the store at a URL. Connects when first used.

    Args:
        url: See `Settings.url`; ``embedded://`` is for RLlib, use `EmbeddedServer` otherwise.
        **settings: See `Settings`.

    Raises:
        SettingsError: If the URL or a setting is wrong.
    """
    return store_from(Settings.create(url=url, **settings))


def store_from(settings: Settings) -> Store:
    """Opens the store that the settings name, as `open_store` does."""
    endpoint = resolve_endpoint(settings)
    if endpoint.scheme == "memory":
        with _memory_lock:
            return _memory_stores.setdefault(endpoint.path, MemoryStore(endpoint.path))
    if endpoint.scheme == "embedded":
        raise SettingsError(
            "embedded:// is for RLlib configs; here, start a server by "
            "redis_state_sync.embedded.EmbeddedServer() and open its url"
        )
    return RedisStore.from_endpoint(endpoint, settings)
