"""A run as a sequence of faults: the same for the same seed, whatever happens in it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from tests.chaos.faults import REGISTRY

# What may go wrong at the same time, on the way to a server that has its own troubles.
_WITH_SERVER = ("black_hole", "connections_refused", "replies_cut", "replies_delayed")
_SERVER = (
    "can_not_save",
    "out_of_memory",
    "read_only",
    "replica_promoted",
    "restored_from_dump",
    "server_killed",
    "server_stopped",
)


@dataclass(frozen=True)
class Step:
    """One fault, or two at a time.

    Args:
        kind: Which.
        params: Its parameters.
        seconds: How long it lasts.
        pause_s: How long all goes well before it.
        also: Kind and parameters of another one that lasts as long.
    """

    kind: str
    params: dict[str, Any]
    seconds: float
    pause_s: float
    also: tuple[str, dict[str, Any]] | None = None

    def __str__(self) -> str:
        text = f"{self.kind} {self.params} for {self.seconds} s"
        return f"{text} with {self.also[0]} {self.also[1]}" if self.also else text


def steps(
    seed: int, *, longest_s: float = 2.5, pairs: bool = True, kinds: Collection[str] = ()
) -> Iterator[Step]:
    """Endless. Every kind comes once before any comes again.

    Args:
        seed: Of everything.
        longest_s: How long a fault may last.
        pairs: Whether two may be there at the same time.
        kinds: Only these; default: all.
    """
    rng = random.Random(seed)
    known = sorted(kinds or REGISTRY)
    for _ in itertools.count():
        rng.shuffle(known)
        for kind in known:
            yield _step(kind, rng, longest_s, pairs)


def one(kind: str, seed: int, longest_s: float = 2.5) -> Step:
    """A step of this kind on its own."""
    return next(steps(seed, longest_s=longest_s, pairs=False, kinds=[kind]))


def _step(kind: str, rng: random.Random, longest_s: float, pairs: bool) -> Step:
    fault = REGISTRY[kind]
    params = fault.draw(rng)
    seconds = round(rng.uniform(0.3, min(longest_s, fault.longest_s)), 2)
    pause_s = round(rng.uniform(0.05, 0.5), 2)
    also = None
    if kind in _SERVER and rng.random() < 0.3 and pairs:
        other = rng.choice(_WITH_SERVER)
        also = (other, REGISTRY[other].draw(rng))
    return Step(kind, params, seconds, pause_s, also)
