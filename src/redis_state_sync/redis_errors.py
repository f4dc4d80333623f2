"""What redis-py raises, in this package's terms: named server, category, remedy, no secret."""

from __future__ import annotations

import ssl

import redis

from redis_state_sync import errors
from redis_state_sync.errors import SettingsError, StoreError

_REPLIES: tuple[tuple[str, type[StoreError], str], ...] = (
    ("NOPERM", errors.StorePermissionError, "grant the user the commands listed in deploy/redis"),
    ("WRONGPASS", errors.StoreAuthError, "check user and password"),
    (
        "NOAUTH",
        errors.StoreAuthError,
        "the server asks for a password: see 'Credentials' in the docs",
    ),
    ("READONLY", errors.StoreReadOnlyError, "this is a replica: connect to the primary"),
    (
        "MISCONF",
        errors.StoreReadOnlyError,
        "the server can not persist and refuses writes: see its log",
    ),
    ("OOM", errors.StoreFullError, "raise maxmemory, or keep a shorter history"),
    ("LOADING", errors.StoreLoadingError, "the server is still loading its data"),
    ("MASTERDOWN", errors.StoreUnavailableError, "the replica has no primary"),
    ("CLUSTERDOWN", errors.StoreUnavailableError, "the cluster has no owner for the slot"),
    ("TRYAGAIN", errors.StoreUnavailableError, "the cluster moves the slot"),
)


# Servers and proxies quote the arguments of a command that they do not know: of AUTH and HELLO,
# these are the password.
_QUOTED_ARGUMENTS = ", with args beginning with"


def _text(error: Exception) -> str:
    return str(error).partition(_QUOTED_ARGUMENTS)[0][:300]


def shown(error: Exception) -> Exception | None:
    """What to chain a translated error to: nothing if the original's text may hold a password."""
    return None if _QUOTED_ARGUMENTS in str(error) else error


def reply_error(error: Exception, operation: str, where: str) -> StoreError:
    """An error reply of the server as a `StoreError`."""
    text = _text(error)
    kind, remedy = errors.StoreError, ""
    by_type = {
        redis.exceptions.NoPermissionError: "NOPERM",
        redis.exceptions.ReadOnlyError: "READONLY",
        redis.exceptions.OutOfMemoryError: "OOM",
        redis.exceptions.BusyLoadingError: "LOADING",
        redis.exceptions.MasterDownError: "MASTERDOWN",
    }
    # redis-py takes the code off the text of the errors that it has a class for.
    code = next((c for cls, c in by_type.items() if isinstance(error, cls)), text.split(" ")[0])
    for prefix, cls, advice in _REPLIES:
        if code == prefix:
            kind, remedy = cls, f" ({advice})"
    return kind(f"{where}: {operation} was refused: {text}{remedy}")


def translated(error: Exception, operation: str, where: str) -> Exception:
    """Any exception from connecting or talking as one of ours; settings errors stay as they are."""
    text = _text(error)
    if isinstance(error, SettingsError):
        return error
    if isinstance(error, (redis.AuthenticationError, redis.exceptions.AuthorizationError)):
        return errors.StoreAuthError(
            f"{where}: wrong or missing user or password ({text}): set "
            "REDIS_STATE_SYNC_PASSWORD_FILE or REDIS_STATE_SYNC_PASSWORD in this process's "
            "environment"
        )
    if isinstance(error, (redis.BusyLoadingError, redis.ResponseError)):
        return reply_error(error, operation, where)
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError):
            return errors.StoreTLSError(
                f"{where}: TLS failed during {operation}: {text} (check ssl_ca_certs, the host "
                "name in the certificate, and that the port speaks TLS)"
            )
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, (redis.TimeoutError, TimeoutError)):
        return errors.StoreTimeoutError(f"{where}: no answer in time during {operation}")
    if isinstance(error, (redis.ConnectionError, OSError)):
        return errors.StoreUnavailableError(f"{where}: {operation} failed: {text}")
    return errors.StoreReplyError(
        f"{where}: no valid reply during {operation} ({type(error).__name__}: {text}); is this a "
        "Redis or Valkey server?"
    )
