"""The one place that connects to Redis: URL to pool, and connecting off the caller's path."""

from __future__ import annotations

import inspect
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.connection import AbstractConnection
from redis.retry import Retry
from redis.sentinel import SentinelConnectionPool

try:
    from redis.maint_notifications import MaintNotificationsConfig
except ImportError:  # redis-py 6
    MaintNotificationsConfig = None  # type: ignore[assignment,misc]

from redis_state_sync.credentials import EnvironmentCredentials
from redis_state_sync.endpoint import Endpoint
from redis_state_sync.errors import SettingsError, StoreTimeoutError, StoreUnavailableError
from redis_state_sync.guarded import guarded
from redis_state_sync.redis_errors import connecting_hint, without_frames
from redis_state_sync.sentinels import Sentinels

Pool = Any  # redis.ConnectionPool, or a look-alike such as fakeredis' own.
Connection = Any

# CLIENT SETINFO would cost two round trips and a right that a minimal ACL user lacks. How to leave
# it out was renamed in redis-py 7.
_NO_CLIENT_SETINFO: dict[str, Any] = (
    {"driver_info": None}
    if "driver_info" in inspect.signature(AbstractConnection.__init__).parameters
    else {"lib_name": None, "lib_version": None}
)

# Since redis-py 7 RESP3 connections also ask to be told of maintenance: another round trip, another
# right, and an error on Unix sockets.
_NO_NOTIFICATIONS: dict[str, Any] = (
    {"maint_notifications_config": MaintNotificationsConfig(enabled=False)}
    if MaintNotificationsConfig is not None
    else {}
)

# More than half, so that with the usual 2 s a lost SYN, sent again after 1 s, still arrives.
_SHARE_OF_AN_ADDRESS = 0.6


def make_pool(
    endpoint: Endpoint,
    *,
    connect_timeout_s: float,
    password_env: str = "REDIS_STATE_SYNC_PASSWORD",  # noqa: S107 - a variable's name
    credential_provider: Any = None,
) -> Pool:
    """Makes a redis-py pool that connects when first asked, and never retries by itself.

    Retrying is decided by those who know how much time is left. RESP2 unless the URL says
    ``protocol=3``: it needs no HELLO, which old servers and proxies do not know.

    Raises:
        SettingsError: If a file of certificates or a password can not be read.
    """
    credentials = credential_provider
    if credentials is None:
        from_environment = EnvironmentCredentials(endpoint, password_env)
        credentials = from_environment if from_environment.available() else None
    common: dict[str, Any] = {
        "socket_timeout": connect_timeout_s,
        # A name may have several addresses, of which the first is dead: the next has its turn yet.
        "socket_connect_timeout": connect_timeout_s * _SHARE_OF_AN_ADDRESS,
        "retry": Retry(NoBackoff(), 0),
        "protocol": int(endpoint.options.get("protocol", "2")),
        **_NO_CLIENT_SETINFO,
    }
    tls = _tls_options(endpoint) if endpoint.tls else {}
    own = {
        **common,
        **_NO_NOTIFICATIONS,
        "db": endpoint.db,
        "credential_provider": credentials,
    }
    if endpoint.scheme == "unix":
        return redis.ConnectionPool(
            connection_class=redis.UnixDomainSocketConnection, path=endpoint.path, **own
        )
    tcp = {"socket_keepalive": True, **tls}
    if endpoint.sentinel:
        sentinels = Sentinels(
            endpoint, connect_timeout_s=connect_timeout_s, options={**common, **tcp}
        )
        return SentinelConnectionPool(  # type: ignore[no-untyped-call]
            endpoint.service, sentinels, ssl=endpoint.tls, **own, **tcp
        )
    host, port = endpoint.hosts[0]
    connection_class = redis.SSLConnection if endpoint.tls else redis.Connection
    return redis.ConnectionPool(
        connection_class=connection_class, host=host, port=port, **own, **tcp
    )


def _tls_options(endpoint: Endpoint) -> dict[str, Any]:
    options: dict[str, Any] = {
        name: value for name, value in endpoint.options.items() if name.startswith("ssl_")
    }
    for name in ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile"):
        # Python's own error would not say which file, and look like one of the network.
        if name in options and not os.access(options[name], os.R_OK):
            raise SettingsError(
                f"{name} in the store URL names {options[name]!r}, which can not be read"
            )
    options.setdefault("ssl_cert_reqs", "required")
    # Python refuses to check host names of certificates that it does not verify.
    default = "false" if options["ssl_cert_reqs"] == "none" else "true"
    checked = options.get("ssl_check_hostname", default).lower() == "true"
    options["ssl_check_hostname"] = checked
    return options


class StillConnectingError(StoreTimeoutError):
    """No connection yet: the attempt goes on, and the next call may find it ready."""


class Connector:
    """Holds at most one live connection, and bounds what waiting for one costs.

    Connecting (name look-up, TCP, TLS, authentication, asking sentinels) runs on a thread of its
    own: a caller with little time gives up waiting, the attempt goes on, and the next call finds
    the connection ready. Safe to use after a fork: the child connects anew.
    """

    def __init__(self, make: Callable[[], Pool], where: str) -> None:
        self._make = make
        self._where = where
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._pool: Pool = None
        self._idle: Connection = None
        self._lent: Connection = None
        self._attempt: Future[Connection] | None = None

    def acquire(self, timeout: float) -> tuple[Connection, bool]:
        """Returns a live connection, and whether it is fresh.

        Raises:
            StillConnectingError: If none is ready within `timeout` seconds.
            StoreUnavailableError: If the interpreter is about to end.
            Exception: Whatever the attempt to connect failed with.
        """
        with self._lock:
            if self._pid != os.getpid():
                self._forget()
            if self._idle is not None:
                connection, self._idle = self._idle, None
                # redis-py would connect a closed one anew on the caller's time.
                if getattr(connection, "_sock", True) is not None:
                    self._lent = connection
                    return connection, False
            # What failed before this call, perhaps in an outage that is over, is tried again. The
            # caller hears of it only if there is no news in time: a wrong password, say.
            failed = self._attempt if _has_failed(self._attempt) else None
            if self._attempt is None or failed is not None:
                if sys.is_finalizing():  # A thread would never begin to run.
                    raise StoreUnavailableError(
                        f"{self._where}: not connecting while the interpreter shuts down"
                    )
                self._attempt = self._begin_attempt()
            attempt = self._attempt
        try:
            connection = attempt.result(timeout)
        except FutureTimeout:
            error = failed.exception() if failed is not None else None
            try:
                raise error or StillConnectingError(
                    f"{self._where}: no connection within {timeout:.3f} s (still connecting)"
                    f"{connecting_hint(self._where)}"
                ) from None
            finally:
                del failed, error  # They hold the exception, which holds this frame.
        except BaseException:
            self._finished(attempt, None)
            del attempt, failed  # They hold the exception, which holds this frame.
            raise
        self._finished(attempt, connection)
        return connection, True

    @property
    def idle(self) -> Connection | None:
        """The connection that `acquire` has at hand, if any."""
        with self._lock:
            return self._idle if self._pid == os.getpid() else None

    def release(self, connection: Connection) -> None:
        """Gives back a connection on which every reply was read.

        It is kept, unless `close` was called meanwhile.
        """
        with self._lock:
            if self._lent is connection and self._pid == os.getpid():
                self._idle, self._lent = connection, None
                return
        connection.disconnect()

    def lends(self, connection: Connection) -> bool:
        """Whether a connection is on loan from here, and `close` was not called meanwhile."""
        with self._lock:
            return self._lent is connection and self._pid == os.getpid()

    def adopt(self, connection: Connection) -> None:
        """Keeps a connection that another connector made, unless there is one already."""
        with self._lock:
            if self._idle is None and self._pid == os.getpid():
                self._idle = connection
                return
        connection.disconnect()

    def close(self) -> None:
        """Closes the connection, if there is one. `acquire` makes a new one."""
        with self._lock:
            connection, attempt = self._idle, self._attempt
            inherited = self._pid != os.getpid()
            self._forget()
        if inherited:
            return
        if connection is not None:
            connection.disconnect()
        if attempt is not None:
            attempt.add_done_callback(_disconnect)

    def _begin_attempt(self) -> Future[Connection]:
        attempt: Future[Connection] = Future()
        thread = threading.Thread(
            target=self._connect, args=(attempt,), name="redis-state-sync-connect", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:  # Of threads or memory there is no more; later there may be.
            raise StoreUnavailableError(f"{self._where}: can not connect: {error}") from error
        return attempt

    def _connect(self, attempt: Future[Connection]) -> None:
        try:
            with self._lock:
                if self._pool is None:
                    self._pool = self._make()
                pool = self._pool
            # Not pool.make_connection(): it counts every attempt, failed ones too, and refuses for
            # good after max_connections (100 by default) of them.
            connection = guarded(pool.connection_class)(**pool.connection_kwargs)
            connection.connect()
        except BaseException as error:
            attempt.set_exception(without_frames(error))
        else:
            attempt.set_result(connection)

    def _finished(self, attempt: Future[Connection], connection: Connection) -> None:
        with self._lock:
            if self._attempt is attempt:
                self._attempt, self._lent = None, connection


def _has_failed(attempt: Future[Connection] | None) -> bool:
    return attempt is not None and attempt.done() and attempt.exception() is not None


def _disconnect(attempt: Future[Connection]) -> None:
    if attempt.exception() is None:
        attempt.result().disconnect()


def remaining(deadline: float) -> float:
    """Seconds until a `time.monotonic()` deadline, at least 0."""
    return max(0.0, deadline - time.monotonic())
