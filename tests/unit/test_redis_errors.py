"""What redis-py raises becomes ours: category, server, remedy, no secret."""

from __future__ import annotations

import ssl

import pytest
import redis
from redis import exceptions

from redis_state_sync import errors
from redis_state_sync.errors import SettingsError
from redis_state_sync.redis_errors import reply_error, shown, translated

WHERE = "redis://host:6379/0"


@pytest.mark.parametrize(
    ("error", "cls", "category"),
    [
        (redis.ResponseError("NOPERM no permissions"), errors.StorePermissionError, "permission"),
        (exceptions.NoPermissionError("no permissions"), errors.StorePermissionError, "permission"),
        (redis.ResponseError("WRONGPASS invalid"), errors.StoreAuthError, "auth"),
        (redis.ResponseError("NOAUTH needed"), errors.StoreAuthError, "auth"),
        (exceptions.ReadOnlyError("replica"), errors.StoreReadOnlyError, "readonly"),
        (redis.ResponseError("MISCONF errors writing"), errors.StoreReadOnlyError, "readonly"),
        (exceptions.OutOfMemoryError("maxmemory"), errors.StoreFullError, "full"),
        (redis.BusyLoadingError("loading"), errors.StoreLoadingError, "loading"),
        (exceptions.MasterDownError("down"), errors.StoreUnavailableError, "network"),
        (redis.ResponseError("CLUSTERDOWN no"), errors.StoreUnavailableError, "network"),
        (exceptions.ClusterDownError("no"), errors.StoreUnavailableError, "network"),
        (exceptions.TryAgainError("later"), errors.StoreUnavailableError, "network"),
        (exceptions.MovedError("1 h:1"), errors.StoreError, "server"),
        (exceptions.AskError("1 h:1"), errors.StoreError, "server"),
        (redis.ResponseError("ERR something"), errors.StoreError, "server"),
        (redis.ResponseError(""), errors.StoreError, "server"),
    ],
)
def test_replies(error: Exception, cls: type, category: str) -> None:
    """Every error reply has its class and category, and names server and operation: C5."""
    for ours in (reply_error(error, "poll", WHERE), translated(error, "poll", WHERE)):
        assert type(ours) is cls
        assert ours.category == category
        assert WHERE in str(ours)
        assert "poll" in str(ours)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (exceptions.ClusterDownError("no"), "CLUSTERDOWN no"),
        (redis.ResponseError("CLUSTERDOWN no"), "CLUSTERDOWN no"),
        (exceptions.MovedError("1 h:1"), "MOVED 1 h:1"),
        (exceptions.AskError("1 h:1"), "ASK 1 h:1"),
        (exceptions.ReadOnlyError("replica"), "READONLY replica"),
    ],
)
def test_codes_are_shown(error: Exception, says: str) -> None:
    """The code that redis-py takes off an error reply is in the message, once: C5."""
    assert f"refused: {says} (" in str(reply_error(error, "poll", WHERE))


@pytest.mark.parametrize(
    ("error", "cls"),
    [
        (redis.AuthenticationError("WRONGPASS x"), errors.StoreAuthError),
        (redis.TimeoutError("t"), errors.StoreTimeoutError),
        (TimeoutError("t"), errors.StoreTimeoutError),
        (redis.ConnectionError("c"), errors.StoreUnavailableError),
        (ConnectionResetError("c"), errors.StoreUnavailableError),
        (OSError("c"), errors.StoreUnavailableError),
        (ssl.SSLError("certificate"), errors.StoreTLSError),
        (redis.InvalidResponse("HTTP/1.1"), errors.StoreReplyError),
        (UnicodeDecodeError("utf-8", b"x", 0, 1, "y"), errors.StoreReplyError),
        (ValueError("x"), errors.StoreReplyError),
    ],
)
def test_transport(error: Exception, cls: type) -> None:
    """Every way in which talking can fail has its class: C5, C32."""
    ours = translated(error, "fetch", WHERE)
    assert type(ours) is cls
    assert WHERE in str(ours)
    assert "fetch" in str(ours) or cls is errors.StoreAuthError


def test_tls_behind_a_connection_error() -> None:
    """A TLS failure is found behind redis-py's own ConnectionError: C82."""
    error = redis.ConnectionError("Error 1 connecting")
    error.__cause__ = ssl.SSLCertVerificationError("hostname mismatch")
    assert type(translated(error, "poll", WHERE)) is errors.StoreTLSError


def test_a_primary_that_was_demoted_behind_sentinels() -> None:
    """READONLY behind sentinels is told as such; redis-py makes a network error of it."""
    error = redis.ConnectionError("The previous master is now a slave")
    ours = translated(error, "publish", "redis+sentinel://h:1/mymaster/0")
    assert type(ours) is errors.StoreReadOnlyError
    assert "primary" in str(ours)


def test_settings_errors_stay() -> None:
    """A missing password file says so itself."""
    error = SettingsError("x")
    assert translated(error, "poll", WHERE) is error


@pytest.mark.parametrize(
    ("error", "cls", "remedy"),
    [
        (redis.ResponseError("DENIED protected mode"), errors.StoreAuthError, "PASSWORD_FILE"),
        (redis.ResponseError("NOREPLICAS Not enough"), errors.StoreReadOnlyError, "min-replicas"),
        (redis.ResponseError("unknown command 'XADD'"), errors.StoreError, "renamed"),
        (redis.ResponseError("WRONGTYPE Operation"), errors.StoreError, "another namespace"),
        (redis.ResponseError("DB index is out of range"), errors.StoreError, "behind the host"),
        (redis.ResponseError("max number of clients reached"), errors.StoreError, "maxclients"),
        (
            redis.ConnectionError("max number of clients reached"),
            errors.StoreUnavailableError,
            "maxclients",
        ),
    ],
)
def test_remedies(error: Exception, cls: type, remedy: str) -> None:
    """What a server's settings forbid comes with what to change."""
    ours = translated(error, "poll", WHERE)
    assert type(ours) is cls
    assert remedy in str(ours)


@pytest.mark.parametrize("operation", ["fetch", "upload", "drop", "note"])
def test_a_server_that_answered_before_needs_no_tls(operation: str) -> None:
    """A connection that closes in a transfer is not blamed on TLS: polls came through."""
    closed = redis.ConnectionError("Connection closed by server.")
    assert "TLS" in str(translated(closed, "poll", WHERE))
    assert "TLS" not in str(translated(closed, operation, WHERE))


@pytest.mark.parametrize("command", ["AUTH", "HELLO"])
def test_quoted_arguments_are_cut_off(command: str) -> None:
    """A server that quotes an unknown AUTH or HELLO does not put the password in the error: C94."""
    quoted = redis.ResponseError(
        f"unknown command '{command}', with args beginning with: 'me' 'hunter2' "
    )
    for ours in (reply_error(quoted, "poll", WHERE), translated(quoted, "poll", WHERE)):
        assert "hunter2" not in str(ours)
        assert f"unknown command '{command}'" in str(ours)
    assert shown(quoted) is None
    harmless = redis.ResponseError("ERR syntax")
    assert shown(harmless) is harmless
