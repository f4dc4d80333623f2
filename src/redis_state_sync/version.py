"""Versions of a published state: ordered pairs that only ever grow."""

from __future__ import annotations

from dataclasses import dataclass

from redis_state_sync.errors import VersionError

_LIMIT = 1 << 64  # A Redis Stream id is two unsigned 64-bit integers.
LAST_GENERATION = LAST_NUMBER = _LIMIT - 1


@dataclass(frozen=True, order=True, slots=True)
class Version:
    """One published state: ``(generation, number)``, written ``generation-number``.

    The written form is that of a Redis Stream id, so that the server itself refuses a version
    that is not greater than the newest (https://redis.io/docs/latest/commands/xadd/).

    Args:
        generation: One learner incarnation that took over the namespace, an int in [0, 2**64).
        number: Counts within a generation, an int in [0, 2**64). 0 is the claim by which a
            learner takes over; states are numbered from 1.

    Raises:
        VersionError: If either is not such an int (bools are refused).
    """

    generation: int
    number: int

    def __post_init__(self) -> None:
        for name, value in (("generation", self.generation), ("number", self.number)):
            if type(value) is not int or not 0 <= value < _LIMIT:
                raise VersionError(f"{name} must be an int in [0, 2**64), got {value!r}")

    def __str__(self) -> str:
        return f"{self.generation}-{self.number}"

    @property
    def is_claim(self) -> bool:
        """Whether this is a take-over record rather than a state."""
        return self.number == 0

    def next_id(self) -> str | None:
        """The smallest greater one, written; None for the greatest that there is."""
        if self.number < _LIMIT - 1:
            return f"{self.generation}-{self.number + 1}"
        return f"{self.generation + 1}-0" if self.generation < _LIMIT - 1 else None

    @classmethod
    def parse(cls, text: str | bytes) -> Version:
        """Reads the written form.

        Raises:
            VersionError: If `text` is not two decimal integers joined by a dash.
        """
        if isinstance(text, bytes):
            text = text[:64].decode("ascii", "replace")  # Longer than any version.
        if not isinstance(text, str):
            raise VersionError(f"a version is written as text, not as {type(text).__name__}")
        generation, dash, number = text.partition("-")
        digits = generation + number
        # isascii() as well: isdigit() alone is true for digits of other scripts.
        if not (dash and generation and number and digits.isascii() and digits.isdigit()):
            raise VersionError(f"not a version of the form 'generation-number': {text[:64]!r}")
        if len(generation) > 20 or len(number) > 20:
            raise VersionError(f"version out of range: {text[:64]!r}")
        return cls(int(generation), int(number))
