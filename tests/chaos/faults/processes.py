"""Learners and readers die, freeze and are replaced."""

from __future__ import annotations

import random
import signal

from tests.chaos.faults.base import Fault, Params
from tests.chaos.learner import REFUSED
from tests.chaos.members import Learner

REFUSED_WITHIN_S = 2.0


class LearnerKilled(Fault):
    """SIGKILL of the learner; another one starts, as the same writer or as another one."""

    kind = "learner_killed"

    @classmethod
    def draw(cls, rng: random.Random) -> Params:
        return {"same_writer": rng.random() < 0.5}

    def inject(self) -> None:
        self.world.learner.signal(signal.SIGKILL)

    def heal(self) -> None:
        world = self.world
        writer = world.learner.writer if self.params["same_writer"] else None
        world.enthrone(world.start_learner(writer=writer))


class AllKilled(Fault):
    """Server and learner are killed; another learner takes over a server that is empty."""

    kind = "all_killed"
    seen = frozenset({"network"})

    @classmethod
    def draw(cls, rng: random.Random) -> Params:
        return {"same_writer": rng.random() < 0.5}

    def inject(self) -> None:
        self.world.learner.signal(signal.SIGKILL)
        self.world.server.kill()
        self.world.lost_data()

    def heal(self) -> None:
        world = self.world
        world.server.start_empty()
        writer = world.learner.writer if self.params["same_writer"] else None
        world.enthrone(world.start_learner(writer=writer))


class LearnerStopped(Fault):
    """SIGSTOP of the learner, then SIGCONT: it goes on where it was."""

    kind = "learner_stopped"

    def inject(self) -> None:
        self.world.learner.signal(signal.SIGSTOP)

    def heal(self) -> None:
        self.world.learner.signal(signal.SIGCONT)


class LearnerSuperseded(Fault):
    """The learner is stopped; another one takes over; the old one wakes up and is refused."""

    kind = "learner_superseded"
    seen = frozenset({"fenced"})

    @classmethod
    def draw(cls, rng: random.Random) -> Params:
        return {"same_writer": rng.random() < 0.5}

    def inject(self) -> None:
        world = self.world
        self._old = world.learner
        self._old.signal(signal.SIGSTOP)
        writer = self._old.writer if self.params["same_writer"] else None
        world.enthrone(world.start_learner(writer=writer))

    def heal(self) -> None:
        refuse(self, self._old)


def refuse(fault: Fault, old: Learner) -> None:
    """Wakes a learner up, and waits until it has stopped because another one took over."""
    world = fault.world
    old.expected_end = True
    old.signal(signal.SIGCONT)
    world.wait(lambda: old.exit_code is not None, f"{old.name} that is refused")
    line = old.told("refused")
    if old.exit_code != REFUSED or line is None:
        world.violation(6, old.name, f"was not refused, but ended with {old.exit_code}")


class ReaderKilled(Fault):
    """SIGKILL of a reader; another one takes its place."""

    kind = "reader_killed"

    @classmethod
    def draw(cls, rng: random.Random) -> Params:
        return {"which": rng.randrange(4)}

    def inject(self) -> None:
        readers = self.world.readers
        self._reader = readers[self.params["which"] % len(readers)]
        self._reader.signal(signal.SIGKILL)

    def heal(self) -> None:
        self.world.replace_reader(self._reader)


class ReaderStopped(Fault):
    """SIGSTOP of a reader, then SIGCONT: what it was fetching is long superseded."""

    kind = "reader_stopped"

    @classmethod
    def draw(cls, rng: random.Random) -> Params:
        return {"which": rng.randrange(4)}

    def inject(self) -> None:
        readers = self.world.readers
        self._reader = readers[self.params["which"] % len(readers)]
        self._reader.signal(signal.SIGSTOP)

    def heal(self) -> None:
        self._reader.signal(signal.SIGCONT)
