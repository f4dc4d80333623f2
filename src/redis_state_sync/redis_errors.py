"""What redis-py raises, in this package's terms: named server, category, remedy, no secret."""

from __future__ import annotations

import re
import ssl
from typing import TypeVar

import redis

from redis_state_sync import errors
from redis_state_sync.errors import SettingsError, StoreError

ErrorT = TypeVar("ErrorT", bound=BaseException)

_RESP2_ONLY = (
    "this server, or a proxy before it, speaks RESP2 only: leave protocol=3 out of the store URL"
)
_CLUSTER_ONLY = (
    "the server is a node of a Redis Cluster: use redis+cluster:// (with TLS rediss+cluster://) in "
    "the store URL"
)
_REPLIES: tuple[tuple[str, type[StoreError], str], ...] = (
    (
        "WRONGTYPE",
        errors.StoreError,
        "something else has this key: use another namespace, or delete the key",
    ),
    ("NOPERM", errors.StorePermissionError, "grant the user the commands listed in deploy/redis"),
    ("WRONGPASS", errors.StoreAuthError, "check user and password"),
    (
        "DENIED",
        errors.StoreAuthError,
        "give the server a password and set REDIS_STATE_SYNC_PASSWORD_FILE or "
        "REDIS_STATE_SYNC_PASSWORD here, or turn its protected-mode off",
    ),
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
    (
        "NOREPLICAS",
        errors.StoreReadOnlyError,
        "the server takes writes only while enough replicas follow: see min-replicas-to-write",
    ),
    ("OOM", errors.StoreFullError, "raise maxmemory, or keep a shorter history"),
    ("LOADING", errors.StoreLoadingError, "the server is still loading its data"),
    ("MASTERDOWN", errors.StoreUnavailableError, "the replica has no primary"),
    ("CLUSTERDOWN", errors.StoreUnavailableError, "the cluster has no owner for the slot"),
    ("TRYAGAIN", errors.StoreUnavailableError, "the cluster moves the slot"),
    ("MOVED", errors.StoreError, _CLUSTER_ONLY),
    ("ASK", errors.StoreError, _CLUSTER_ONLY),
    ("NOPROTO", errors.StoreError, _RESP2_ONLY),
)

# Part of a text that has no code of its own -> remedy.
_REMEDIES = (
    (
        "unknown command",
        "the server does not have or has renamed this command; Redis 5.0 and any Valkey have it",
    ),
    ("DB index is out of range", "the number behind the host in the store URL is the database"),
    ("max number of clients", "raise the server's maxclients"),
)
# Only ever sent to a server that has answered before: a connection that it closes speaks Redis.
_LATER = ("fetch", "upload", "drop", "note")

# What the TLS library says -> what to do about it. The first that fits.
_TLS_REMEDIES = (
    ("mismatch", "use a name or address in the URL that the server's certificate is for"),
    ("expired", "the server needs a new certificate; is this machine's clock right?"),
    ("VERIFY_FAILED", "ssl_ca_certs must name a file with the CA of the server's certificate"),
    ("WRONG_VERSION", "the port does not speak TLS: use redis://, or the server's TLS port"),
    ("X509", "ssl_ca_certs, ssl_certfile and ssl_keyfile must be PEM files that fit each other"),
    ("PEM", "ssl_ca_certs, ssl_certfile and ssl_keyfile must be PEM files that fit each other"),
    ("", "does the server ask for a client certificate? ssl_certfile and ssl_keyfile name it"),
)
_PLAIN_URL = re.compile(r"(redis|valkey|redis\+sentinel|redis\+cluster)://")
_TLS_URL = re.compile(r"(rediss|valkeys|rediss\+sentinel|rediss\+cluster)://")

# What redis-py's connections by way of sentinels make of READONLY.
_DEMOTED = "master is now a slave"

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
        redis.exceptions.ClusterDownError: "CLUSTERDOWN",
        redis.exceptions.TryAgainError: "TRYAGAIN",
        redis.exceptions.MovedError: "MOVED",  # Before its base class.
        redis.exceptions.AskError: "ASK",
    }
    code = next((c for cls, c in by_type.items() if isinstance(error, cls)), text.split(" ")[0])
    if not text.startswith(code):
        text = f"{code} {text}"  # redis-py takes it off if it has a class for the error.
    for prefix, cls, advice in _REPLIES:
        if code == prefix:
            kind, remedy = cls, f" ({advice})"
    if re.match(r"(ERR )?unknown command .?HELLO\b", text):
        remedy = f" ({_RESP2_ONLY})"
    remedy = remedy or _remedy(text)
    return kind(f"{where}: {operation} was refused: {text}{remedy}")


def translated(
    error: Exception,
    operation: str,
    where: str,
    password_env: str = "REDIS_STATE_SYNC_PASSWORD",  # noqa: S107 - a variable's name
) -> Exception:
    """Any exception from connecting or talking as one of ours; settings errors stay as they are."""
    text = _text(error)
    if isinstance(error, SettingsError):
        return error
    if isinstance(error, (redis.AuthenticationError, redis.exceptions.AuthorizationError)):
        return errors.StoreAuthError(
            f"{where}: wrong or missing user or password ({text}): set "
            f"{password_env}_FILE or {password_env} in this process's environment"
        )
    if isinstance(error, (redis.BusyLoadingError, redis.ResponseError)):
        return reply_error(error, operation, where)
    if _DEMOTED in text:
        return reply_error(redis.ReadOnlyError(text), operation, where)
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError):
            remedy = next(advice for part, advice in _TLS_REMEDIES if part in text)
            return errors.StoreTLSError(
                f"{where}: TLS failed during {operation}: {text} ({remedy})"
            )
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, (redis.TimeoutError, TimeoutError)):
        hint = connecting_hint(where) if "connect" in text else ""
        return errors.StoreTimeoutError(f"{where}: no answer in time during {operation}{hint}")
    if isinstance(error, (redis.ConnectionError, OSError)):
        hint = _remedy(text) or ("" if operation in _LATER else _closed_hint(text, where))
        return errors.StoreUnavailableError(f"{where}: {operation} failed: {text}{hint}")
    return errors.StoreReplyError(
        f"{where}: no valid reply during {operation} ({type(error).__name__}: {text}); is this a "
        "Redis or Valkey server, and does its port speak TLS (rediss://)?"
    )


def _remedy(text: str) -> str:
    return next((f" ({advice})" for part, advice in _REMEDIES if part in text), "")


def connecting_hint(where: str) -> str:
    """Why connecting may take for ever: a plain port waits for the end of a TLS greeting."""
    return " (does the port speak TLS?)" if _TLS_URL.match(where) else ""


def _closed_hint(text: str, where: str) -> str:
    """What else a closed connection may mean."""
    if not re.search("reset|closed|pipe|EOF", text, re.IGNORECASE):
        return ""
    if _TLS_URL.match(where):
        return " (does the server ask for a client certificate? ssl_certfile and ssl_keyfile)"
    return " (does the port speak TLS? then rediss://)" if _PLAIN_URL.match(where) else ""


def without_frames(error: ErrorT) -> ErrorT:
    """Drops redis-py's frames, of what caused the error as well.

    Printers that show local variables would show the password. And frames that hold the error that
    they belong to, as redis-py's do, would keep all their callers' until the next garbage
    collection.
    """
    link: BaseException | None = error
    while link is not None:
        link.__traceback__ = None
        link = link.__cause__ or link.__context__
    return error
