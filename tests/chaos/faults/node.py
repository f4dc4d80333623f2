"""Somebody meddles with the folder of the node's cache, or a reader dies while it fills a file.

Only processes of the same user can. One that cuts a file short under those who have it mapped kills
them (SIGBUS), as it could by a signal: that is not tried here, see docs/failures.md.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import time

from tests.chaos.faults.base import Fault, Params
from tests.chaos.members import Reader

_WATCH_S = 60.0


class CacheWiped(Fault):
    """The folder is removed, or all files in it are, with those that say who uses it."""

    kind = "cache_wiped"
    at_once = True

    @classmethod
    def draw(cls, rng: random.Random) -> Params:
        return {"what": rng.choice(["folder", "files"])}

    def inject(self) -> None:
        folder = self.world.node_folder
        # Where readers keep making new files, one is in use at any time.
        self.world.wait(folder.exists, "a node's cache that is used")
        if self.params["what"] == "folder":
            shutil.rmtree(folder, ignore_errors=True)
            return
        for name in os.listdir(folder):
            (folder / name).unlink(missing_ok=True)


class CacheForbidden(Fault):
    """The folder is open to all, or is a link or a file: nobody may trust it. Then it is gone."""

    kind = "cache_forbidden"

    @classmethod
    def draw(cls, rng: random.Random) -> Params:
        return {"by": rng.choice(["mode", "link", "file"])}

    def inject(self) -> None:
        folder = self.world.node_folder
        self.world.wait(folder.exists, "a node's cache that is used")
        if self.params["by"] == "mode":
            folder.chmod(0o777)
            return
        self._aside = folder.with_name(f"aside-{time.monotonic_ns()}")
        folder.rename(self._aside)
        if self.params["by"] == "link":
            folder.symlink_to(self._aside)
        else:
            folder.touch()

    def heal(self) -> None:
        folder = self.world.node_folder
        if self.params["by"] == "mode":
            folder.chmod(0o700)
            return
        folder.unlink()
        shutil.rmtree(self._aside)


class FillerKilled(Fault):
    """SIGKILL of a reader while it fills a file for all of its node; another one takes its place.

    Where the learner is on the same node, nobody has to fill: another learner takes over first.
    """

    kind = "filler_killed"

    def inject(self) -> None:
        world = self.world
        while world.learner.on_readers_node:
            world.learner.signal(signal.SIGKILL)
            world.enthrone(world.start_learner())
        sharing = [reader for reader in world.readers if reader.shares]
        filling: list[Reader] = []
        deadline = time.monotonic() + _WATCH_S
        while not filling:
            assert time.monotonic() < deadline, "no reader fills a file"
            world.look()
            filling = [reader for reader in sharing if _fills(reader)]
        self._reader = filling[0]
        self._reader.signal(signal.SIGKILL)

    def heal(self) -> None:
        self.world.replace_readers([self._reader])


def _fills(reader: Reader) -> bool:
    """Whether it has a file open that is not whole yet."""
    folder = f"/proc/{reader.pid}/fd"
    for fd in os.listdir(folder):
        try:
            if os.readlink(f"{folder}/{fd}").endswith(".part"):
                return True
        except FileNotFoundError:
            continue  # Closed just now.
    return False
