"""How a learner takes a namespace over, and how a refused one says by whom it was replaced."""

from __future__ import annotations

import time

from redis_state_sync.decisions import next_generation
from redis_state_sync.errors import DecodeError, NotNewerError, StoreTimeoutError
from redis_state_sync.keys import Keys
from redis_state_sync.manifest import Manifest, Writer
from redis_state_sync.store import Entry, Store
from redis_state_sync.version import Version


def take_over(store: Store, keys: Keys, writer: Writer, *, ttl_s: float, timeout: float) -> Version:
    """Claims the next generation of a namespace.

    The store refuses a claim that is not greater than its newest version, so of two learners that
    claim at once both get a generation of their own, and the later one wins.

    Raises:
        StoreError: If the store can not be reached within `timeout` seconds, or refuses.
    """
    deadline = time.monotonic() + timeout
    while True:
        newest = store.newest(keys, timeout=_left(deadline))
        server_ms = store.time_ms(timeout=_left(deadline))
        claim = Version(next_generation(newest[0].version if newest else None, server_ms), 0)
        manifest = Manifest(writer, server_ms)
        try:
            store.append(keys, claim, manifest.encode(), ttl_s=ttl_s, timeout=_left(deadline))
        except NotNewerError as error:
            # Another learner was faster, or the reply to our own claim was lost: claim anew.
            if time.monotonic() >= deadline:
                raise StoreTimeoutError(
                    f"{store.describe()}: namespace {keys.namespace!r} could not be taken over "
                    f"within {timeout:g} s: other learners keep claiming it"
                ) from error
        else:
            return claim


def _left(deadline: float) -> float:
    return max(0.001, deadline - time.monotonic())


def describe_usurper(store: Store, keys: Keys, generation: int, newest: Entry | None) -> str:
    """Says who publishes in a namespace now, for the `StalePublisherError` of a refused learner."""
    who = "another learner"
    if newest is not None:
        try:
            writer = Manifest.decode(newest.manifest).writer
            who = f"generation {newest.version.generation} of {writer}"
        except DecodeError:
            who = f"generation {newest.version.generation} (unreadable record)"
    return (
        f"namespace {keys.namespace!r} at {store.describe()} was taken over by {who}; generation "
        f"{generation} must stop. If both learners should run, give each a namespace of its own"
    )
