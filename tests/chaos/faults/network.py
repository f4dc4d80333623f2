"""What lies between the clients and the server breaks, stalls, trickles or lies."""

from __future__ import annotations

import random
import time
from typing import Any

from tests.chaos.bounds import DEAD_CONNECTION_S
from tests.chaos.faults.base import Fault, Params
from tests.chaos.proxy import Proxy, Rules
from tests.chaos.world import World


class _Network(Fault):
    """Hits the learner's line, the readers', or both."""

    def __init__(self, world: World, **params: Any) -> None:
        super().__init__(world, **params)
        names = ("learner", "readers") if params["whose"] == "all" else (params["whose"],)
        self.proxies: list[Proxy] = [world.proxies[name] for name in names]

    @classmethod
    def draw(cls, rng: random.Random) -> Params:
        return {"whose": rng.choice(["all", "learner", "readers"]), **cls.draw_more(rng)}

    @classmethod
    def draw_more(cls, rng: random.Random) -> Params:
        return {}

    def set(self, **rules: Any) -> None:
        for proxy in self.proxies:
            proxy.set("replies", Rules(**rules))

    def heal(self) -> None:
        for proxy in self.proxies:
            proxy.set("replies", Rules())
            proxy.set("requests", Rules())


class RepliesCut(_Network):
    """Every connection ends in the middle of a reply."""

    kind = "replies_cut"
    seen = frozenset({"network"})

    @classmethod
    def draw_more(cls, rng: random.Random) -> Params:
        return {
            "after": rng.choice([1, 2, 30, 400, 3000, 20_000]),
            "by": rng.choice(["reset", "close"]),
        }

    def inject(self) -> None:
        self.set(cut_after=self.params["after"], cut_by=self.params["by"])


class RepliesDelayed(_Network):
    """Replies come later: within the time that a poll has, or not."""

    kind = "replies_delayed"

    @classmethod
    def draw_more(cls, rng: random.Random) -> Params:
        return {"by_s": rng.choice([0.01, 0.03, 0.06, 0.3, 1.0, 2.5])}

    def inject(self) -> None:
        self.set(delay_s=self.params["by_s"])


class RepliesDribbled(_Network):
    """Replies trickle, down to a byte at a time."""

    kind = "replies_dribbled"

    def __init__(self, world: World, **params: Any) -> None:
        super().__init__(world, **params)
        self.slow_line = True

    @classmethod
    def draw_more(cls, rng: random.Random) -> Params:
        size, pause_s = rng.choice([(1, 0.001), (1, 0.02), (100, 0.01), (1000, 0.005), (1, 0.2)])
        return {"bytes": size, "pause_s": pause_s}

    def inject(self) -> None:
        self.set(dribble=(self.params["bytes"], self.params["pause_s"]))


class Frozen(_Network):
    """Nothing comes through any more: connections that are there freeze, new ones stay silent.

    In the end all of it arrives, or the connections are reset.
    """

    kind = "black_hole"
    seen = frozenset({"timeout"})

    @classmethod
    def draw_more(cls, rng: random.Random) -> Params:
        return {"end": rng.choice(["thaw", "reset"])}

    def inject(self) -> None:
        for proxy in self.proxies:
            proxy.silent = True
            proxy.set("requests", Rules(freeze=True))
            proxy.set("replies", Rules(freeze=True))

    def heal(self) -> None:
        for proxy in self.proxies:
            proxy.silent = False
            if self.params["end"] == "reset":
                proxy.break_off()
        super().heal()


class ConnectionsLost(_Network):
    """Connections that are there are forgotten by what is in between; new ones work.

    No packet says so. A learner that sent something waits `REPLY_TIMEOUT_S` for the reply: so much
    later it may recover.
    """

    kind = "connections_lost"
    at_once = True

    def inject(self) -> None:
        self.grace_s = DEAD_CONNECTION_S
        assert sum(proxy.bury() for proxy in self.proxies) > 0

    def heal(self) -> None:
        pass


class ReplyLost(_Network):
    """One reply never arrives, nor does anything after it on its connection; new ones work.

    Which one decides what the learner was doing. As with `ConnectionsLost`, it waits for it.
    """

    kind = "reply_lost"
    seen = frozenset({"timeout"})

    @classmethod
    def draw_more(cls, rng: random.Random) -> Params:
        return {"after": rng.randrange(8)}

    def inject(self) -> None:
        self.grace_s = DEAD_CONNECTION_S
        for proxy in self.proxies:
            proxy.set("replies", Rules(bury_after=self.params["after"]))


class ConnectionsRefused(_Network):
    """Nobody listens, and connections that were there are reset."""

    kind = "connections_refused"
    seen = frozenset({"network"})

    def inject(self) -> None:
        for proxy in self.proxies:
            proxy.refuse()
            proxy.break_off()

    def heal(self) -> None:
        for proxy in self.proxies:
            proxy.listen()


class BytesFlipped(_Network):
    """Bits of replies are flipped.

    Without a signing key, a record is not protected against that: then only what comes after the
    first bytes of a chunk is hit, where blobs are. Whoever reads a wrong length waits for bytes
    that never come: a learner for `REPLY_TIMEOUT_S`.
    """

    kind = "bytes_flipped"
    seen = frozenset({"integrity", "protocol", "signature", "codec", "network", "timeout"})

    @classmethod
    def draw_more(cls, rng: random.Random) -> Params:
        return {"every": rng.choice([50, 1000, 20_000]), "seed": rng.randrange(1000)}

    def inject(self) -> None:
        self.grace_s = DEAD_CONNECTION_S
        first = 0 if self.world.plan.signed else 4096
        self.set(flip=(first, self.params["every"]), seed=self.params["seed"])


class RequestsThrottled(_Network):
    """A thin line to the server. As long as bytes arrive, states must arrive, too."""

    kind = "requests_throttled"
    longest_s = 5.0

    @classmethod
    def draw_more(cls, rng: random.Random) -> Params:
        return {"bytes": rng.choice([500, 5_000, 40_000])}

    def inject(self) -> None:
        for proxy in self.proxies:
            proxy.set("requests", Rules(dribble=(self.params["bytes"], 0.01)))
        self._since = time.monotonic()

    def heal(self) -> None:
        world, lasted = self.world, time.monotonic() - self._since
        stored = [t for t, _ in world.learner.stored if t > self._since]
        _, manifest = world.newest()
        enough_s = sum(manifest.digests().values()) / (self.params["bytes"] / 0.01)
        # Twice, as one may have been on its way; and what is asked before and after takes time.
        if not stored and lasted > 2 * enough_s + 1.0:
            text = f"no version in {lasted:.1f} s, although {enough_s:.1f} s are enough to send one"
            world.violation(5, world.learner.name, text)
        super().heal()
