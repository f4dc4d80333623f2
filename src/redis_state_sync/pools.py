"""Where a store's connections come from, in whichever process needs them."""

from __future__ import annotations

import inspect
from typing import Any, NoReturn

from redis_state_sync.cluster import Address
from redis_state_sync.connection import Pool, make_pool
from redis_state_sync.credentials import load_provider, with_password
from redis_state_sync.endpoint import Endpoint
from redis_state_sync.errors import SettingsError
from redis_state_sync.settings import Settings


class EndpointPools:
    """Makes a pool in whichever process needs it; credentials are read there and then.

    Args:
        endpoint: Where to.
        settings: With the limits, and where credentials come from.
    """

    def __init__(self, endpoint: Endpoint, settings: Settings) -> None:
        self._endpoint = endpoint
        self._settings = settings

    def __call__(self, node: Address | None = None) -> Pool:
        """A pool, of one node if there is a cluster of them.

        Raises:
            SettingsError: If certificates or credentials can not be had.
        """
        reference = self._settings.credential_provider
        endpoint = with_password(self._endpoint)
        return make_pool(
            endpoint.at(node) if node else endpoint,
            connect_timeout_s=self._settings.connect_timeout_s,
            password_env=self._settings.password_env,
            credential_provider=load_provider(reference) if reference else None,
        )

    def __repr__(self) -> str:
        return f"EndpointPools({self._endpoint.describe()!r})"


class ClientPool:
    """The pool of a client that the user made.

    Args:
        client: A `redis.Redis` or the like.

    Raises:
        SettingsError: If it is something else.
    """

    def __init__(self, client: Any) -> None:
        pool = getattr(client, "connection_pool", None)
        connect = getattr(getattr(pool, "connection_class", None), "connect", None)
        if connect is None or inspect.iscoroutinefunction(connect):
            kind = f"{type(client).__module__}.{type(client).__name__}"
            raise SettingsError(
                f"from_client takes a redis.Redis or the like, not a {kind}: no asyncio client, no "
                "cluster, no URL (open_store is for that)"
            )
        self._pool = pool

    def __call__(self) -> Pool:
        """The pool."""
        return self._pool

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a store over a client of your own can not travel to another process; make one there, "
            "or use open_store(url)"
        )
