"""Opens the store of an RLlib config; knows where the driver's embedded server listens."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from pathlib import Path

from redis_state_sync.backends import resolve_endpoint, store_from
from redis_state_sync.credentials import EnvironmentCredentials
from redis_state_sync.embedded import EmbeddedServer, find_server, short_temp_dir
from redis_state_sync.endpoint import Endpoint
from redis_state_sync.errors import SettingsError
from redis_state_sync.redis_store import RedisStore
from redis_state_sync.settings import Settings
from redis_state_sync.store import Store


def open_rllib_store(settings: Settings, writer_id: str) -> Store:
    """Opens the store for a learner or an EnvRunner, ``embedded://`` included."""
    endpoint = resolve_endpoint(settings)
    if endpoint.scheme != "embedded":
        return store_from(settings)
    return RedisStore.from_endpoint(_address(endpoint, writer_id), settings)


def start_embedded(settings: Settings, writer_id: str) -> EmbeddedServer | None:
    """Starts the driver's server if the URL is ``embedded://``; it stops with the driver."""
    endpoint = resolve_endpoint(settings)
    if endpoint.scheme != "embedded":
        return None
    find_server()  # Before a password is read, which an error's frames would hold.
    host, port = endpoint.hosts[0] if endpoint.hosts else (None, 0)
    return EmbeddedServer(
        socket_path=_socket_path(writer_id),
        host=host,
        port=port,
        password=_password(EnvironmentCredentials(endpoint, settings.password_env)),
    )


def _password(credentials: EnvironmentCredentials) -> str | None:
    return credentials.get_credentials()[-1] if credentials.available() else None


def check_followable(settings: Settings) -> None:
    """Refuses a store that only a learner's own job can reach, for a follower in another one.

    ``memory://`` is let pass: a learner and its follower may share a process, in tests.

    Raises:
        SettingsError: With what to use instead, or if there is no URL.
    """
    endpoint = resolve_endpoint(settings)
    if endpoint.scheme == "embedded" and not endpoint.hosts:
        raise SettingsError(
            "embedded:// is the learner's own server, and a follower needs its address: give both "
            "jobs one to listen on, as in embedded://10.0.0.5:6390 (the learner's host; it asks "
            "for a password), or use a server of its own: redis://host:6379/0"
        )


def check_reach(settings: Settings, *, remote_runners: int, other_nodes: int) -> None:
    """Refuses a store that some EnvRunner could not reach.

    Raises:
        SettingsError: With what to use instead.
    """
    endpoint = resolve_endpoint(settings)
    if endpoint.scheme == "memory" and remote_runners:
        raise SettingsError(
            f"memory:// lives in one process, and this config has {remote_runners} remote "
            "EnvRunners: use num_env_runners=0, or embedded:// for a server of your own"
        )
    if endpoint.scheme == "embedded" and other_nodes and not endpoint.hosts:
        raise SettingsError(
            f"embedded:// can be reached on the driver's host only, and {other_nodes} EnvRunners "
            "run on other hosts: give the address to listen on, as in embedded://10.0.0.5:6390 "
            "(the driver's own; it asks for a password), or use a server of its own"
        )
    if endpoint.scheme == "unix" and other_nodes:
        raise SettingsError(
            f"{endpoint.describe()} is a file of one host, and {other_nodes} EnvRunners run on "
            "other hosts: use redis://"
        )


def _address(endpoint: Endpoint, writer_id: str) -> Endpoint:
    if endpoint.hosts:
        return dataclasses.replace(endpoint, scheme="redis")
    return dataclasses.replace(endpoint, scheme="unix", path=str(_socket_path(writer_id)))


def _socket_path(writer_id: str) -> Path:
    """The same for a driver and its EnvRunners, so that no address has to travel.

    Raises:
        SettingsError: If the folder belongs to someone else, who could listen in our place.
    """
    folder = short_temp_dir() / f"redis-state-sync-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    facts = folder.lstat()
    if facts.st_uid != os.getuid() or facts.st_mode & 0o077 or folder.is_symlink():
        raise SettingsError(
            f"{folder} is not a private folder of this user; remove it or set TMPDIR"
        )
    return folder / f"{hashlib.sha256(writer_id.encode()).hexdigest()[:24]}.sock"
