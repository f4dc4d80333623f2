"""A learner takes over, and the store loses that."""

from __future__ import annotations

import signal

from tests.chaos.faults.base import Fault
from tests.chaos.faults.processes import refuse
from tests.chaos.proxy import Rules

_NEVER = -0.05  # A learner that claims, and publishes when it is told.


class ClaimLost(Fault):
    """Another learner claims and dies; the store loses the claim, which readers have seen.

    The learner before it was stopped meanwhile, and never hears of it: it is the living one.
    """

    kind = "claim_lost"
    at_once = True

    def inject(self) -> None:
        world = self.world
        world.server.save()
        world.learner.signal(signal.SIGSTOP)
        other = world.start_learner(every_s=_NEVER)
        assert other.told("claimed")
        world.pause(0.3)  # Readers look past it.
        other.signal(signal.SIGKILL)
        world.server.kill()
        world.lost_data()
        world.server.start()
        world.server.loaded()
        world.server.forget_files()
        world.learner.signal(signal.SIGCONT)


class ClaimWiped(Fault):
    """The store loses the claim of a learner that has not published yet; the old one wakes up."""

    kind = "claim_wiped"
    seen = frozenset({"fenced"})

    def inject(self) -> None:
        world = self.world
        self._old = world.learner
        self._old.signal(signal.SIGSTOP)
        self._new = world.start_learner(every_s=_NEVER)
        assert self._new.told("claimed")
        world.server.client.flushall()
        world.lost_data()
        versions = world.keys.versions
        world.wait(lambda: world.server.client.exists(versions), "a claim that is put back")

    def heal(self) -> None:
        refuse(self, self._old)
        self._new.order("loud")
        self.world.enthrone(self._new)


class TakeoverWiped(Fault):
    """The store loses everything just after a take-over, and the old learner wakes up just then."""

    kind = "takeover_wiped"
    seen = frozenset({"fenced"})

    def inject(self) -> None:
        world = self.world
        self._old = world.learner
        self._old.signal(signal.SIGSTOP)
        new = world.start_learner()
        world.wait(lambda: new.stored, "a version of the new learner")
        world.server.client.flushall()
        world.lost_data()
        self._old.expected_end = True
        self._old.signal(signal.SIGCONT)
        world.enthrone(new)

    def heal(self) -> None:
        refuse(self, self._old)


class ClaimReplyLost(Fault):
    """A learner claims and never hears that it succeeded: it gives up, the running one is fenced.

    The store can not know that the one that claimed has given up. So there is none left; another
    one is started, as an operator would.
    """

    kind = "claim_reply_lost"
    seen = frozenset({"fenced"})

    def inject(self) -> None:
        world = self.world
        old, line = world.learner, world.proxies["candidate"]
        old.expected_end = True
        line.set("replies", Rules(freeze_after=2))  # What is newest, and the time.
        failed = world.start_learner(line="candidate")
        line.set("replies", Rules())
        failed.expected_end = True
        assert failed.told("not_started"), "it heard of its claim"
        world.wait(lambda: old.exit_code is not None, f"{old.name} that is refused")
        assert old.told("refused")

    def heal(self) -> None:
        self.world.enthrone(self.world.start_learner())
