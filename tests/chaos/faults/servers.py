"""The server dies or freezes, and comes back with less than it had."""

from __future__ import annotations

import random
import signal

import redis

from tests.chaos.faults.base import Fault, Params
from tests.chaos.server import until

_FOREIGN = "somebody-else"


class ServerKilled(Fault):
    """SIGKILL; it comes back empty."""

    kind = "server_killed"
    seen = frozenset({"network"})

    def inject(self) -> None:
        self.world.server.kill()
        self.world.lost_data()

    def heal(self) -> None:
        self.world.server.start_empty()


class ServerStopped(Fault):
    """SIGSTOP, then SIGCONT: connections stay, and nobody answers."""

    kind = "server_stopped"
    seen = frozenset({"timeout"})

    def inject(self) -> None:
        self.world.server.stop(signal.SIGSTOP)

    def heal(self) -> None:
        self.world.server.stop(signal.SIGCONT)


class RestoredFromDump(Fault):
    """SIGKILL; it comes back with an older snapshot (RDB)."""

    kind = "restored_from_dump"
    seen = frozenset({"network"})

    @classmethod
    def draw(cls, rng: random.Random) -> Params:
        return {"older_s": round(rng.uniform(0.1, 1.5), 2)}

    def inject(self) -> None:
        server = self.world.server
        server.save()
        self.world.pause(self.params["older_s"])
        server.kill()
        self.world.lost_data()

    def heal(self) -> None:
        server = self.world.server
        server.start()
        server.loaded()
        server.forget_files()


class RestoredFromLog(Fault):
    """SIGKILL; it comes back with its append-only file (AOF), perhaps without the end of it."""

    kind = "restored_from_log"
    seen = frozenset({"network"})

    @classmethod
    def draw(cls, rng: random.Random) -> Params:
        return {"logged_s": round(rng.uniform(0.2, 1.0), 2), "torn": rng.choice([0, 100, 50_000])}

    def inject(self) -> None:
        server = self.world.server
        server.set(appendonly="yes")
        until(lambda: server.info("aof_rewrite_in_progress") == 0, "an append-only file")
        assert server.info("aof_enabled") == 1
        self.world.pause(self.params["logged_s"])
        server.kill()
        (log,) = (server.data / "appendonlydir").glob("*.incr.aof")
        size = log.stat().st_size
        assert size > 0
        if self.params["torn"]:  # What a machine that lost its power had not written yet.
            with log.open("r+b") as file:
                file.truncate(max(0, size - self.params["torn"]))
        self.world.lost_data()

    def heal(self) -> None:
        server = self.world.server
        server.start("appendonly yes", "aof-load-truncated yes")
        server.loaded()
        server.set(appendonly="no")
        server.forget_files()


class ReplicaPromoted(Fault):
    """The primary is killed and its replica promoted, without the primary's last writes."""

    kind = "replica_promoted"
    seen = frozenset({"network"})

    @classmethod
    def draw(cls, rng: random.Random) -> Params:
        return {"lag_s": round(rng.uniform(0.1, 1.0), 2)}

    def inject(self) -> None:
        replica, primary = self.world.replica(), self.world.server
        # Of nobody: it keeps what it has and hears no more.
        replica.client.replicaof("127.0.0.1", "1")  # type: ignore[no-untyped-call]
        self.world.pause(self.params["lag_s"])
        primary.kill()
        self.world.lost_data()
        self._replica = replica

    def heal(self) -> None:
        self._replica.client.replicaof("NO", "ONE")  # type: ignore[no-untyped-call]
        self.world.promote()


class Loading(Fault):
    """It restarts and takes its time to load an older snapshot."""

    kind = "loading"
    seen = frozenset({"loading"})
    _KEYS = 2000

    def inject(self) -> None:
        server = self.world.server
        pipe = server.client.pipeline(transaction=False)
        for number in range(self._KEYS):
            pipe.set(f"{_FOREIGN}/{number}", b"x" * 100)
        pipe.execute()
        server.save()
        server.kill()
        self.world.lost_data()
        # 20 s in all, and it looks at its clients after every key.
        server.start("key-load-delay 10000", "loading-process-events-interval-bytes 1024")
        try:
            server.client.get(_FOREIGN)
        except redis.exceptions.BusyLoadingError:
            return
        raise AssertionError("the server does not take its time")

    def heal(self) -> None:
        server = self.world.server
        until(lambda: server.client.config_set("key-load-delay", 0), "the end of the delay")
        server.loaded()
        server.forget_files()
        for start in range(0, self._KEYS, 500):
            server.client.unlink(*(f"{_FOREIGN}/{n}" for n in range(start, start + 500)))
