"""How thorough a run is."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.states import MB

SMALL, LARGE = 64_000, 128 * MB


@dataclass(frozen=True, kw_only=True)
class Options:
    """What all sections are told.

    Args:
        rounds: How often each arm has its turn.
        seconds: How long a closed loop of polls runs in one turn.
        pollers: How many poll at once, case by case.
        sizes: Of the states that are fetched, in bytes.
        published: Of the states that are published, in bytes.
        training_seconds: How long a training loop runs in one turn.
        readers: How many readers a fan-out has, case by case.
        fanned_out: Of the states that are fanned out, in bytes.
        scale_pollers: How many pollers are simulated.
        scale_fetchers: How many of them fetch, because each stands for a node.
        scale_seconds: For how long.
    """

    rounds: int = 20
    seconds: float = 0.4
    pollers: tuple[int, ...] = (1, 4, 16, 64)
    sizes: tuple[int, ...] = (SMALL, MB, 16 * MB, LARGE)
    published: tuple[int, ...] = (MB, 16 * MB, LARGE)
    training_seconds: float = 1.2
    readers: tuple[int, ...] = (8, 16, 32)
    fanned_out: tuple[int, ...] = (16 * MB, LARGE)
    scale_pollers: int = 1000
    scale_fetchers: int = 32
    scale_seconds: float = 30.0

    def rounds_for(self, nbytes: int) -> int:
        """Fewer for states whose every round takes seconds."""
        return max(3, self.rounds // 4) if nbytes > LARGE else self.rounds


QUICK = Options(
    rounds=2,
    seconds=0.1,
    pollers=(1, 4),
    sizes=(SMALL, MB),
    published=(MB,),
    training_seconds=0.2,
    readers=(2,),
    fanned_out=(MB,),
    scale_pollers=100,
    scale_fetchers=4,
    scale_seconds=3.0,
)
