"""What must hold whatever fails, checked over the journals of all processes. Pure functions.

1. The versions that a reader applies never go back.
2. A snapshot is one published state, whole: the same in all readers, and what the learner handed
   over under this number (or before it, if a heartbeat published it again).
3. It was published by the learner whose generation it names; once another learner's claim is
   stored, nothing that an older one hands over is ever applied.
4. A `refresh` and a call of `publish` take no longer than `tests.chaos.bounds` says.
5. Two seconds after a fault all is as it was: checked while it runs, by `tests.chaos.recovery`.
6. No process ends by itself, or logs what it did not expect. Only a refused learner stops.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields

from redis_state_sync import Version
from tests.chaos.bounds import PUBLISH_CALL_S, PUT_ASIDE, Refresh, longest, longest_polling
from tests.chaos.journal import Line
from tests.chaos.stalls import Interval, overlap

Journals = Mapping[str, list[Line]]
_LONGEST_STALL_S = 120.0
_UNEXPECTED = re.compile(
    r"Traceback|unexpected error|Exception in thread|never (awaited|retrieved)"
)


@dataclass(frozen=True)
class Violation:
    """A promise that was broken.

    Args:
        invariant: Its number, see above.
        who: The process.
        text: What happened.
        t: When, by the monotonic clock.
    """

    invariant: int
    who: str
    text: str
    t: float

    def __str__(self) -> str:
        return f"[{self.invariant}] {self.who} at {self.t:.3f}: {self.text}"


@dataclass(frozen=True)
class History:
    """All that is known of a run.

    Args:
        learners: Journals, by process.
        readers: The same.
        losses: When the store lost data.
        slow: When lines were slow, as ``(since, until)``.
        stalls: When a CPU of the machine stood still.
        logs: What processes wrote to their standard error.
    """

    learners: Journals
    readers: Journals
    losses: list[float] = field(default_factory=list)
    slow: list[Interval] = field(default_factory=list)
    stalls: list[Interval] = field(default_factory=list)
    logs: Mapping[str, str] = field(default_factory=dict)


def violations(history: History) -> list[Violation]:
    """All of them, in the order of time."""
    checks = (never_back, seen_by_readers, one_content, one_owner, fenced, bounded, expected_only)
    found = [violation for check in checks for violation in check(history)]
    return sorted(found, key=lambda violation: violation.t)


def never_back(history: History) -> Iterable[Violation]:
    """1: versions of one process grow."""
    for reader, lines in history.readers.items():
        held: Version | None = None
        for line in _of(lines, "applied"):
            version = Version.parse(line["version"])
            if held is not None and version <= held:
                yield Violation(1, reader, f"back from {held} to {version}", line["t"])
            held = version


def seen_by_readers(history: History) -> Iterable[Violation]:
    """1, 2: what a reader itself found wrong with a snapshot."""
    for reader, lines in history.readers.items():
        for line in _of(lines, "violation"):
            yield Violation(2, reader, line["text"], line["t"])


def one_content(history: History) -> Iterable[Violation]:
    """2: a version is the same to all, and is what was handed over."""
    handed = {name: Handed(lines) for name, lines in history.learners.items()}
    contents: dict[str, tuple[object, str]] = {}
    for reader, line in _applied(history):
        content = (line["learner"], line["counter"], line["seq_no"])
        other, who = contents.setdefault(line["version"], (content, reader))
        text = f"version {line['version']} is {content}"
        if other != content:
            yield Violation(2, reader, f"{text}, but {other} to {who}", line["t"])
        if line["seq_no"] != line["counter"]:
            yield Violation(2, reader, f"{text}: record and content disagree", line["t"])
        number = Version.parse(line["version"]).number
        maker = handed.get(line["learner"])
        if maker is None or line["counter"] not in maker.possible(number):
            yield Violation(2, reader, f"{text}, which was not handed over so", line["t"])


def one_owner(history: History) -> Iterable[Violation]:
    """3: a generation is one learner's, and all its versions are of this learner's making."""
    owners: dict[int, str] = {}
    for name, lines in history.learners.items():
        for line in lines:
            if line["ev"] == "claimed":
                generation = int(line["generation"])
            elif line["ev"] == "stored":
                generation = Version.parse(line["version"]).generation
            else:
                continue
            if owners.setdefault(generation, name) != name:
                text = f"generation {generation} is also {owners[generation]}'s"
                yield Violation(3, name, text, line["t"])
    writers = {
        name: next((line["writer"] for line in _of(lines, "start")), None)
        for name, lines in history.learners.items()
    }
    for reader, line in _applied(history):
        owner = owners.get(Version.parse(line["version"]).generation)
        text = f"version {line['version']} of {line['learner']}"
        if owner != line["learner"]:
            yield Violation(3, reader, f"{text} in a generation of {owner}", line["t"])
        if line["writer"] != writers.get(line["learner"]):
            yield Violation(3, reader, f"{text} names writer {line['writer']}", line["t"])
        wanted = next((start["writer"] for start in _of(history.readers[reader], "start")), None)
        if wanted is not None and line["writer"] != wanted:
            yield Violation(3, reader, f"{text}, but it follows {wanted}", line["t"])


def fenced(history: History) -> Iterable[Violation]:
    """3: what is handed over after another learner's claim was stored is never applied."""
    handed = {name: Handed(lines) for name, lines in history.learners.items()}
    claims = [
        (int(line["generation"]), name)
        for name, lines in history.learners.items()
        for line in _of(lines, "claimed")
    ]
    # The claim, and each version of the newer learner, keeps the older ones out, until the store
    # loses it.
    walls = {
        name: [line["t"] for line in lines if line["ev"] in ("claimed", "stored")]
        for name, lines in history.learners.items()
    }
    for reader, line in _applied(history):
        version, maker = Version.parse(line["version"]), handed.get(line["learner"])
        since = maker.at.get(line["counter"]) if maker else None
        for generation, newer in claims:
            if since is None or generation <= version.generation:
                continue
            last = bisect_left(walls[newer], since) - 1
            if last >= 0 and not any(walls[newer][last] < t < line["t"] for t in history.losses):
                text = f"version {version}, handed over after {newer} had taken over"
                yield Violation(3, reader, text, line["t"])


def bounded(history: History) -> Iterable[Violation]:
    """4: nobody waits for longer than is promised."""
    for reader, lines in history.readers.items():
        stalls = _Stalls(history, lines)
        for line in _of(lines, "slow"):
            did = Refresh(**{f.name: line[f.name] for f in fields(Refresh)})
            end = line["since"] + line["seconds"]
            slow = any(since < end and line["since"] < until for since, until in history.slow)
            stalled, waits = stalls.within(line["since"], line), PUT_ASIDE * line["gap_s"]
            took, most = line["seconds"] - stalled, longest(did, slow_line=slow) + waits
            if took > most:
                text = f"refresh took {took:.3f} s, and may take {most:.3f} s: {line}"
                yield Violation(4, reader, text, line["t"])
            took, most = did.polled_s - stalled, longest_polling(did) + waits
            if took > most:
                text = f"polling took {took:.3f} s, and may take {most:.3f} s: {line}"
                yield Violation(4, reader, text, line["t"])
    for learner, lines in history.learners.items():
        stalls = _Stalls(history, lines)
        for line in _of(lines, "handed"):
            took = line["seconds"] - stalls.within(line["t"] - line["seconds"], line)
            if took > PUBLISH_CALL_S + PUT_ASIDE * line["gap_s"]:
                yield Violation(4, learner, f"publish() took {took:.3f} s: {line}", line["t"])


def expected_only(history: History) -> Iterable[Violation]:
    """6: nothing in a log that nobody expected."""
    for name, text in history.logs.items():
        found = _UNEXPECTED.search(text)
        if found:
            yield Violation(6, name, text[max(0, found.start() - 300) :][:2000], 0.0)


class _Stalls:
    """When the machine, or this process, stood still."""

    def __init__(self, history: History, lines: list[Line]) -> None:
        own = [(line["since"], line["until"]) for line in _of(lines, "stall")]
        self._all = sorted([*history.stalls, *own])

    def within(self, since: float, line: Line) -> float:
        """Seconds of it from this time on, while what a line tells of was done."""
        end = since + line["seconds"]
        first = bisect_left(self._all, (since - _LONGEST_STALL_S, 0.0))
        found = self._all[first : bisect_left(self._all, (end, 0.0))]
        # What it noticed itself may be noted in its journal later, or not at all.
        return max(overlap(found, since, end), float(line["stalled"]))


class Handed:
    """Which contents a learner gave to which numbers, and when."""

    def __init__(self, lines: list[Line]) -> None:
        self.at = {line["counter"]: line["t"] for line in _of(lines, "hands")}
        self._by_number = {line["number"]: line["counter"] for line in _of(lines, "handed")}
        self._numbers = sorted(self._by_number)
        # A learner that is killed has not noted which number it got for the last one.
        self._unnoted = set(self.at) - set(self._by_number.values())

    def possible(self, number: int) -> set[int]:
        """What a version of this number may hold."""
        if number in self._by_number:
            return {self._by_number[number]}
        place = bisect_left(self._numbers, number)
        found = {self._by_number[self._numbers[place - 1]]} if place else set()
        return found | self._unnoted if place == len(self._numbers) else found


def _of(lines: Iterable[Line], event: str) -> Iterable[Line]:
    return (line for line in lines if line["ev"] == event)


def _applied(history: History) -> Iterable[tuple[str, Line]]:
    for reader, lines in history.readers.items():
        for line in _of(lines, "applied"):
            yield reader, line
