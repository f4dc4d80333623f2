"""The server lives and refuses, or throws away what it has."""

from __future__ import annotations

import random
import threading
import time

import redis

from tests.chaos.faults.base import Fault, Params
from tests.chaos.server import until

_FOREIGN = "somebody-else"


class ReadOnly(Fault):
    """It becomes the replica of a dead primary: writes are refused, reads are served."""

    kind = "read_only"
    seen = frozenset({"readonly"})

    def inject(self) -> None:
        self.world.server.client.replicaof("127.0.0.1", "1")  # type: ignore[no-untyped-call]

    def heal(self) -> None:
        self.world.server.client.replicaof("NO", "ONE")  # type: ignore[no-untyped-call]


class BusyScript(Fault):
    """Somebody else's script runs for ever (BUSY), until SCRIPT KILL."""

    kind = "busy_script"
    seen = frozenset({"server", "timeout"})
    longest_s = 3.0

    def inject(self) -> None:
        self.world.server.set(busy_reply_threshold=100)
        self._thread = threading.Thread(target=self._script)
        self._thread.start()
        until(self._busy, "a server that is busy")

    def heal(self) -> None:
        assert self.world.server.client.execute_command("SCRIPT", "KILL")
        self._thread.join()

    def _script(self) -> None:
        client = self.world.server.new_client()
        try:
            client.eval("while true do end", 0)
        except redis.RedisError:
            pass  # It was killed.
        finally:
            client.close()

    def _busy(self) -> bool:
        try:
            self.world.server.client.ping()
        except redis.ResponseError as error:
            return str(error).startswith("BUSY")
        return False


class ScriptKilled(Fault):
    """SCRIPT KILL: of no effect on us, who run no script. The server says NOTBUSY."""

    kind = "script_killed"
    at_once = True

    def inject(self) -> None:
        try:
            self.world.server.client.execute_command("SCRIPT", "KILL")
        except redis.ResponseError as error:
            assert "No scripts in execution" in str(error)  # noqa: PT017 - the other way is next
            return
        raise AssertionError("there was a script to kill")


class OutOfMemory(Fault):
    """It is at maxmemory and evicts nothing: the limit is lowered, or somebody else fills it."""

    kind = "out_of_memory"
    seen = frozenset({"full"})

    @classmethod
    def draw(cls, rng: random.Random) -> Params:
        return {"by": rng.choice(["limit", "foreign data"])}

    def inject(self) -> None:
        server = self.world.server
        server.set(maxmemory_policy="noeviction")
        if self.params["by"] == "limit":
            server.set(maxmemory=1)
        else:
            server.set(maxmemory=server.info("used_memory") + (8 << 20))
            try:
                while True:
                    server.client.append(_FOREIGN, b"x" * (1 << 20))
            except redis.exceptions.OutOfMemoryError:
                pass

    def heal(self) -> None:
        self.world.server.set(maxmemory=0)
        self.world.server.client.unlink(_FOREIGN)


class Evicted(Fault):
    """Somebody else fills it, and it evicts what was not used for longest: ours, too."""

    kind = "evicted"
    seen = frozenset({"blob_missing", "behind"})

    def inject(self) -> None:
        server = self.world.server
        self._before = server.info("evicted_keys")
        server.set(maxmemory_policy="allkeys-lru", maxmemory_samples=10)
        server.set(maxmemory=server.info("used_memory") + (1 << 20))
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._fill)
        self._thread.start()
        self.world.lost_data()

    def heal(self) -> None:
        server = self.world.server
        self._done.set()
        self._thread.join()
        assert server.info("evicted_keys") > self._before
        server.set(maxmemory=0, maxmemory_policy="noeviction")
        self.world.lost_data()
        for key in list(server.client.scan_iter(f"{_FOREIGN}/*")):
            server.client.unlink(key)

    def _fill(self) -> None:
        client, number = self.world.server.new_client(), 0
        while not self._done.is_set():
            number += 1
            try:
                client.set(f"{_FOREIGN}/{number}", b"x" * (100 << 10))
            except redis.exceptions.OutOfMemoryError:
                pass  # It could not evict as fast.
            time.sleep(0.001)
        client.close()


class CanNotSave(Fault):
    """Its dump fails, so it refuses writes (MISCONF)."""

    kind = "can_not_save"
    seen = frozenset({"readonly"})

    def inject(self) -> None:
        server = self.world.server
        server.forget_files()
        # In the way of the dump. A folder without permissions would be none for root.
        (server.data / "dump.rdb").mkdir()
        server.set(save="3600 1000000", stop_writes_on_bgsave_error="yes")
        server.client.bgsave()
        until(lambda: server.info("rdb_last_bgsave_status") == "err", "a dump that fails")

    def heal(self) -> None:
        server = self.world.server
        (server.data / "dump.rdb").rmdir()
        server.save()
        server.set(save="")
        server.forget_files()


class ClientsKilled(Fault):
    """CLIENT KILL of all connections."""

    kind = "clients_killed"
    at_once = True

    def inject(self) -> None:
        killed = self.world.server.client.client_kill_filter(_type="normal", skipme=True)
        assert killed >= 2  # Of learner and readers.


class TrackingKilled(Fault):
    """CLIENT KILL of the connections that rely on tracking: no word comes any more."""

    kind = "tracking_killed"
    at_once = True

    def inject(self) -> None:
        client = self.world.server.client
        # They ask to be tracked anew with each connection, so after other faults, too.
        until(self._tracked, "connections that are tracked")
        for each in self._tracked():
            client.client_kill_filter(_id=each)

    def _tracked(self) -> list[str]:
        clients = self.world.server.client.client_list()
        return [each["id"] for each in clients if "t" in each["flags"]]


class ClientsPaused(Fault):
    """CLIENT PAUSE, of all commands or of those that write: they are answered when it is over."""

    kind = "clients_paused"

    @classmethod
    def draw(cls, rng: random.Random) -> Params:
        return {"all": rng.random() < 0.5, "ms": rng.choice([30, 200, 800, 1500])}

    def inject(self) -> None:
        self.world.server.client.client_pause(self.params["ms"], all=self.params["all"])

    def heal(self) -> None:
        client = self.world.server.client
        until(lambda: client.set(_FOREIGN, "x"), "the end of the pause")
        client.unlink(_FOREIGN)
