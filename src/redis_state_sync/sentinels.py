"""Asks sentinels where the primary is, and says which of them could not tell and why."""

from __future__ import annotations

from typing import Any

import redis

from redis_state_sync import errors
from redis_state_sync.credentials import SENTINEL_PASSWORD_ENV, SentinelCredentials
from redis_state_sync.endpoint import Endpoint
from redis_state_sync.guarded import guarded
from redis_state_sync.redis_errors import translated, without_frames

# They say only that nobody was there: what another sentinel said tells more.
_SILENT = (errors.StoreUnavailableError, errors.StoreTimeoutError)


class Sentinels:
    """Finds the primary for redis-py's `SentinelConnectionPool`.

    In place of redis-py's own `Sentinel`, whose errors show the settings of its connections, and
    which keeps a connection to a sentinel for as long as the process lives.
    https://redis.io/docs/latest/develop/reference/sentinel-clients/

    Args:
        endpoint: The sentinels, and the name of the primary that they watch.
        connect_timeout_s: Most seconds for finding the primary and connecting to it: a silent
            sentinel takes its share, so that the others still have their turn.
        options: How to connect to a sentinel, as `redis.Redis` takes it.
    """

    def __init__(
        self, endpoint: Endpoint, *, connect_timeout_s: float, options: dict[str, Any]
    ) -> None:
        credentials = SentinelCredentials()
        share = connect_timeout_s / (len(endpoint.hosts) + 1)
        own = {
            **options,
            "socket_timeout": share,
            "socket_connect_timeout": share,
            "ssl": endpoint.tls,
            # Nothing here is better in RESP3, and redis-py 6 can not read its answer.
            "protocol": 2,
            "credential_provider": credentials if credentials.available() else None,
        }
        self._where = endpoint.describe()
        self.sentinels = [redis.Redis(host, port, **own) for host, port in endpoint.hosts]
        for sentinel in self.sentinels:
            pool = sentinel.connection_pool
            pool.connection_class = guarded(pool.connection_class)

    def discover_master(self, service_name: str) -> tuple[str, int]:
        """Asks one sentinel after the other, the one that knew it last time first.

        Returns:
            Host and port of the primary.

        Raises:
            StoreError: If none of them names one. The message says what each answered.
        """
        problems: list[errors.StoreError] = []
        for sentinel in list(self.sentinels):
            try:
                address = self._ask(sentinel, service_name)
            except errors.StoreError as error:
                problems.append(without_frames(error))
            else:
                self.sentinels.remove(sentinel)
                self.sentinels.insert(0, sentinel)
                return address
        kinds = [type(problem) for problem in problems]
        kind = next((k for k in kinds if k not in _SILENT), kinds[0])
        raise kind(
            f"{self._where}: no sentinel names a primary for {service_name!r}: "
            + "; ".join(str(problem) for problem in problems)
        )

    def _ask(self, sentinel: redis.Redis, service_name: str) -> tuple[str, int]:
        settings = sentinel.connection_pool.connection_kwargs
        name = f"sentinel {settings['host']}:{settings['port']}"
        try:
            masters: Any = sentinel.sentinel_masters()
        except Exception as error:
            if isinstance(error, redis.ResponseError) and "unknown command" in str(error):
                raise errors.StoreReplyError(f"{name} is no sentinel") from None
            # Not chained: redis-py's text may show the settings of the connection.
            raise translated(error, "discovery", name, SENTINEL_PASSWORD_ENV) from None
        finally:
            sentinel.close()
        state = masters.get(service_name)
        if state is None:
            raise errors.StoreUnavailableError(f"{name} watches no such primary")
        if not state["is_master"] or state["is_sdown"] or state["is_odown"]:
            raise errors.StoreUnavailableError(f"{name} says that it is down")
        return state["ip"], state["port"]
