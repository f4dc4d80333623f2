"""Somebody deletes or damages what is in the store."""

from __future__ import annotations

import random

from tests.chaos.content import FROZEN
from tests.chaos.faults.base import Fault, Params

_CHANGING = "rl_module/p0"


class _Data(Fault):
    """The learner goes on publishing, or is quiet: then only its heartbeat can find out."""

    at_once = True

    def quieten(self) -> None:
        world = self.world
        if self.params["quiet"]:
            world.learner.order("quiet")
            world.learner.quiet = True
            # What is on its way is stored first.
            world.pause(0.3)

    def settle(self) -> None:
        if self.params["quiet"]:
            self.world.learner.order("loud")
            self.world.learner.quiet = False

    def blobs(self, name: str) -> list[str]:
        _, manifest = self.world.newest()
        return [self.world.keys.blob(p.digest) for p in manifest.components[name].pieces]


class FlushAll(_Data):
    """FLUSHALL."""

    kind = "flush_all"

    @classmethod
    def draw(cls, rng: random.Random) -> Params:
        return {"quiet": rng.random() < 0.5}

    def inject(self) -> None:
        self.quieten()
        assert self.world.server.client.dbsize() > 0
        self.world.server.client.flushall()
        self.world.lost_data()


class VersionsDeleted(_Data):
    """The stream of versions is deleted; the blobs stay."""

    kind = "versions_deleted"

    @classmethod
    def draw(cls, rng: random.Random) -> Params:
        return {"quiet": rng.random() < 0.5}

    def inject(self) -> None:
        self.quieten()
        assert self.world.server.client.delete(self.world.keys.versions) == 1
        self.world.lost_data()


class BlobsDeleted(_Data):
    """Blobs of the newest version are deleted."""

    kind = "blobs_deleted"

    @classmethod
    def draw(cls, rng: random.Random) -> Params:
        which = rng.choice(["all", FROZEN, _CHANGING])
        return {"which": which, "quiet": rng.random() < 0.5}

    def inject(self) -> None:
        self.quieten()
        client = self.world.server.client
        if self.params["which"] == "all":
            keys = list(client.scan_iter(self.world.keys.blob("*").replace("{", "\\{")))
        else:
            keys = self.blobs(self.params["which"])
        # One that changes may be superseded just now.
        assert client.delete(*keys) > 0 or self.params["which"] == _CHANGING
        self.world.lost_data()


class BlobDamaged(_Data):
    """A byte of a blob is changed in its place (SETRANGE)."""

    kind = "blob_damaged"
    component = _CHANGING

    @classmethod
    def draw(cls, rng: random.Random) -> Params:
        return {"quiet": rng.random() < 0.5, "where": round(rng.random(), 4)}

    def inject(self) -> None:
        self.quieten()
        client, key = self.world.server.client, self.blobs(self.component)[0]
        size = client.strlen(key)
        if size == 0:
            return  # Superseded just now.
        place = int(self.params["where"] * size)
        (byte,) = client.getrange(key, place, place) or b"\0"
        client.setrange(key, place, bytes([byte ^ 1]))
        assert client.ttl(key) > 0


class FrozenBlobDamaged(BlobDamaged):
    """The same to a component that never changes: no new version brings it again by itself."""

    kind = "frozen_blob_damaged"
    component = FROZEN
