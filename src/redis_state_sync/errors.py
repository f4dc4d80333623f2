"""Everything this package raises. `category` doubles as the label of failure counters."""

from __future__ import annotations

from typing import ClassVar


class RedisStateSyncError(Exception):
    """Base of all errors of this package."""

    category: ClassVar[str] = "other"


class SettingsError(RedisStateSyncError, ValueError):
    """A setting, URL or call is wrong; the message names it and the remedy."""

    category = "settings"


class UnknownVersionError(SettingsError):
    """There is no such version or pin; the message names those that there are."""


class VersionError(RedisStateSyncError, ValueError):
    """Something is not a version."""

    category = "codec"


class CodecError(RedisStateSyncError, ValueError):
    """Base of encoding and decoding errors."""

    category = "codec"


class EncodeError(CodecError):
    """A value can not be published; the message names its path in the state."""


class DecodeError(CodecError):
    """Received bytes are not a well-formed manifest or blob."""


class IntegrityError(CodecError):
    """Received bytes do not have the digest that the manifest names."""

    category = "integrity"
    digest: str | None = None
    """Of which blob, if it is one."""


class SignatureError(CodecError):
    """A record is unsigned, or signed by a key, for a version or a namespace that it is not of."""

    category = "signature"


class StoreError(RedisStateSyncError):
    """The store could not do what was asked. The message names the server, never a secret."""

    category = "server"


class StoreUnavailableError(StoreError):
    """No answer: refused, unreachable, closed, or not finished loading its data."""

    category = "network"


class StoreTimeoutError(StoreUnavailableError):
    """No answer within the time that the operation allows."""

    category = "timeout"


class StoreTLSError(StoreUnavailableError):
    """The TLS handshake failed."""

    category = "tls"


class StoreLoadingError(StoreUnavailableError):
    """The server is still loading its data set."""

    category = "loading"


class StoreAuthError(StoreError):
    """Wrong or missing credentials."""

    category = "auth"


class StorePermissionError(StoreError):
    """The user may not run the command or touch the key (NOPERM)."""

    category = "permission"


class StoreReadOnlyError(StoreError):
    """The server is a replica, or refuses writes because persistence fails (MISCONF)."""

    category = "readonly"


class StoreFullError(StoreError):
    """The server is at maxmemory and evicts nothing (OOM)."""

    category = "full"


class StoreReplyError(StoreError):
    """The reply is not one of the protocol: probably not a Redis server."""

    category = "protocol"


class BlobMissingError(StoreError):
    """A blob that the manifest names is gone: superseded, expired or evicted."""

    category = "blob_missing"
    digest: str | None = None
    """Of which blob."""


class StoreBehindError(StoreError):
    """The store's newest version is older than the one that a reader holds: it lost the newer."""

    category = "behind"


class NotNewerError(StoreError):
    """The store refused a version that is not greater than its newest one."""

    category = "fenced"


class StalePublisherError(RedisStateSyncError):
    """Another learner took over the namespace. This one must stop publishing."""

    category = "fenced"


class LearnerAliveError(RedisStateSyncError):
    """Somebody who is not the learner wants to publish, and a learner is at work: nothing was."""

    category = "fenced"


class PublishTimeoutError(RedisStateSyncError, TimeoutError):
    """A version was not stored within the time that the caller waits."""

    category = "timeout"


class FirstVersionError(RedisStateSyncError, TimeoutError):
    """A follower got no version within `first_version_timeout_s`, and has none to act with."""

    category = "timeout"


class ApplyError(RedisStateSyncError):
    """A fetched state does not fit its receiver; the receiver keeps what it has."""

    category = "apply"


class StaleStateError(RedisStateSyncError):
    """What a reader holds is older than `max_staleness_s` or `max_staleness_versions` allow."""

    category = "stale"
