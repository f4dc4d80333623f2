"""Where user and password come from: never from settings, always at the time of connecting."""

from __future__ import annotations

import importlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from redis_state_sync.endpoint import Endpoint, parse_url
from redis_state_sync.errors import SettingsError

URL_ENV = "REDIS_STATE_SYNC_URL"
USERNAME_ENV = "REDIS_STATE_SYNC_USERNAME"
PASSWORD_FILE_ENV = "REDIS_STATE_SYNC_PASSWORD_FILE"  # noqa: S105 - a variable's name
SENTINEL_USERNAME_ENV = "REDIS_STATE_SYNC_SENTINEL_USERNAME"
SENTINEL_PASSWORD_ENV = "REDIS_STATE_SYNC_SENTINEL_PASSWORD"  # noqa: S105 - a variable's name
SENTINEL_PASSWORD_FILE_ENV = "REDIS_STATE_SYNC_SENTINEL_PASSWORD_FILE"  # noqa: S105 - likewise


class CredentialProvider(Protocol):
    """redis-py's protocol, see `redis.credentials.CredentialProvider`."""

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        """Returns ``(password,)`` or ``(username, password)``."""
        ...


class EnvironmentCredentials:
    """Reads the password anew for each connection, so that a rotated one is picked up.

    In this order: the file that REDIS_STATE_SYNC_PASSWORD_FILE names, the environment variable
    `password_env`, the password of the URL in REDIS_STATE_SYNC_URL. The user is the URL's, else
    REDIS_STATE_SYNC_USERNAME.
    """

    _username_env = USERNAME_ENV
    _file_env = PASSWORD_FILE_ENV

    def __init__(self, endpoint: Endpoint, password_env: str) -> None:
        self._endpoint = endpoint
        self._password_env = password_env

    def __repr__(self) -> str:
        return f"{type(self).__name__}(<redacted>)"

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        """Returns ``(password,)`` or ``(username, password)``.

        Raises:
            SettingsError: If there is a user but no password, or the file can not be read.
        """
        username = self._endpoint.username or os.environ.get(self._username_env)
        password = self._password()
        if password is None:
            raise SettingsError(
                f"user {username!r} has no password: set {self._file_env} or "
                f"{self._password_env} in the environment of this process"
            )
        return (username, password) if username else (password,)

    def available(self) -> bool:
        """Whether there is anything to authenticate with."""
        return bool(
            self._endpoint.username
            or os.environ.get(self._username_env)
            or self._password() is not None
        )

    def _password(self) -> str | None:
        path = os.environ.get(self._file_env)
        if path:
            try:
                # Some editors begin a file with a byte order mark, which is no part of a password.
                password = Path(path).read_text(encoding="utf-8-sig").rstrip("\r\n")
            except (OSError, UnicodeDecodeError) as error:
                raise SettingsError(
                    f"{self._file_env} names {path!r}, which can not be read "
                    f"({type(error).__name__})"
                ) from None
            if not password:
                raise SettingsError(f"{self._file_env} names {path!r}, which is empty")
            return password
        return os.environ.get(self._password_env) or self._endpoint.password


def with_password(endpoint: Endpoint) -> Endpoint:
    """An endpoint that came from another process, with the password of this process's URL."""
    if endpoint.password is not None or not os.environ.get(URL_ENV):
        return endpoint
    try:
        own = parse_url(os.environ[URL_ENV])
    except SettingsError:
        return endpoint  # It may be given as a setting and have nothing to do with the variable.
    return own if replace(own, password=None) == endpoint else endpoint


class SentinelCredentials(EnvironmentCredentials):
    """The same for sentinels, from REDIS_STATE_SYNC_SENTINEL_* alone.

    User and password of the URL are for the primary: a sentinel must not get to see them.
    """

    _username_env = SENTINEL_USERNAME_ENV
    _file_env = SENTINEL_PASSWORD_FILE_ENV

    def __init__(self) -> None:
        super().__init__(Endpoint("redis+sentinel"), SENTINEL_PASSWORD_ENV)


def load_provider(reference: str) -> Any:
    """Imports ``"package.module:name"``: a credential provider, or a function that makes one.

    Raises:
        SettingsError: If there is no such thing.
    """
    module, _, name = reference.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise SettingsError(f"credential_provider {reference!r} can not be imported") from error
    provider = (
        found if hasattr(found, "get_credentials") and not isinstance(found, type) else found()
    )
    if not hasattr(provider, "get_credentials"):
        raise SettingsError(f"credential_provider {reference!r} has no get_credentials()")
    return provider
