"""Weights from a learner to the processes that act with them, through Redis or Valkey.

Read in this order: version, keys, store, codec, publisher, subscriber, then `rllib`.
Importing this loads neither ray nor torch; `redis_state_sync.rllib` does.
"""

from redis_state_sync.backends import open_store
from redis_state_sync.codec import register_type
from redis_state_sync.errors import (
    ApplyError,
    CodecError,
    FirstVersionError,
    LearnerAliveError,
    PublishTimeoutError,
    RedisStateSyncError,
    SettingsError,
    StalePublisherError,
    StaleStateError,
    StoreError,
    UnknownVersionError,
)
from redis_state_sync.history import History, StoredVersion
from redis_state_sync.keyring import Keyring
from redis_state_sync.publisher import StatePublisher
from redis_state_sync.rollback import roll_back
from redis_state_sync.settings import Settings
from redis_state_sync.snapshot import Snapshot
from redis_state_sync.snapshot_pool import SnapshotPool
from redis_state_sync.subscriber import StateSubscriber
from redis_state_sync.version import Version

__version__ = "0.1.0"

__all__ = [
    "ApplyError",
    "CodecError",
    "FirstVersionError",
    "History",
    "Keyring",
    "LearnerAliveError",
    "PublishTimeoutError",
    "RedisStateSyncError",
    "Settings",
    "SettingsError",
    "Snapshot",
    "SnapshotPool",
    "StalePublisherError",
    "StaleStateError",
    "StatePublisher",
    "StateSubscriber",
    "StoreError",
    "StoredVersion",
    "UnknownVersionError",
    "Version",
    "open_store",
    "register_type",
    "roll_back",
]
