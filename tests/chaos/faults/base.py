"""What a fault is: something that is done to a world, and undone."""

from __future__ import annotations

import random
from typing import Any, ClassVar

from tests.chaos.world import World

Params = dict[str, Any]
REGISTRY: dict[str, type[Fault]] = {}


class Fault:
    """One kind of fault; an instance is done once to one world. Subclasses register themselves.

    Args:
        world: To whom.
        **params: As `draw` made them.
    """

    kind: ClassVar[str]
    seen: ClassVar[frozenset[str]] = frozenset()
    """Some process counts a failure of one of these categories; empty: none needs to."""
    at_once: ClassVar[bool] = False
    """It is over as soon as it is done: nothing lasts, and nothing is healed."""
    longest_s: ClassVar[float] = 10.0
    """It should not last longer."""

    def __init__(self, world: World, **params: Any) -> None:
        self.world = world
        self.params = params
        self.grace_s = 0.0
        """Recovery may take so much longer, for a reason that its docstring says."""
        self.slow_line = False
        """Whether bytes trickle while it lasts, so that a fetch may take all its time."""

    def __init_subclass__(cls) -> None:
        if hasattr(cls, "kind"):
            assert cls.kind not in REGISTRY
            REGISTRY[cls.kind] = cls

    @classmethod
    def draw(cls, rng: random.Random) -> Params:
        """Its parameters: plain data, the same for the same random numbers."""
        return {}

    def inject(self) -> None:
        """Does it, and makes sure that it was done."""
        raise NotImplementedError

    def heal(self) -> None:
        """Undoes it. (Not called if it was over at once.)"""

    def settle(self) -> None:
        """What is left to do when all has recovered."""
