"""Does a sequence of faults to a world, and reports."""

from __future__ import annotations

import json
import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.chaos.checks import History, Violation, violations
from tests.chaos.faults import REGISTRY, Fault
from tests.chaos.journal import read
from tests.chaos.members import Learner, Reader
from tests.chaos.recovery import Recovery, recover
from tests.chaos.sequence import Step
from tests.chaos.world import World


@dataclass(frozen=True)
class Done:
    """A step that was run.

    Args:
        step: Which.
        began: When the fault was injected, by the monotonic clock.
        seconds: For how long it was there.
        recovery: How long it took until all was well; None: it never was.
        failures: What processes counted meanwhile, by category.
    """

    step: Step
    began: float
    seconds: float
    recovery: Recovery | None
    failures: dict[str, int]

    def __str__(self) -> str:
        after = f"recovered in {self.recovery.seconds:.2f} s" if self.recovery else "NO RECOVERY"
        seen = ", ".join(f"{n} {category}" for category, n in sorted(self.failures.items()))
        return f"{self.step}: {after}; {seen or 'no failures'}"


@dataclass
class Report:
    """What came of a run."""

    command: str
    seconds: float = 0.0
    counts: dict[str, Any] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """For people."""
        shown = [f"{name}: {value}" for name, value in self.counts.items() if name != "by kind"]
        kinds = self.counts["by kind"]
        shown.append("faults: " + ", ".join(f"{n} {kind}" for kind, n in sorted(kinds.items())))
        return [*shown, *(f"VIOLATION {text}" for text in self.violations)]


class Runner:
    """Steps on one world, one after the other.

    Args:
        world: Which runs already.
        command: What a person types to have the same again.
        tell: Told of each step that is done.
    """

    def __init__(
        self, world: World, command: str, tell: Callable[[str], None] = lambda text: None
    ) -> None:
        self.world = world
        self.command = command
        self.done: list[Done] = []
        self.slow: list[tuple[float, float]] = []
        self._tell = tell
        self._began = time.monotonic()

    def run(self, step: Step) -> Done:
        """One step.

        Raises:
            AssertionError: If a fault could not be injected or healed.
        """
        world = self.world
        world.pause(step.pause_s)
        before = world.failures()
        faults = [REGISTRY[step.kind](world, **step.params)]
        if step.also is not None:
            faults.append(REGISTRY[step.also[0]](world, **step.also[1]))
        world.journal.write("inject", step=str(step))
        began = time.monotonic()
        lasting = [fault for fault in faults if not fault.at_once]
        for fault in faults:
            fault.inject()
        if lasting:
            world.pause(step.seconds)
        for fault in lasting:
            fault.heal()
        since = time.monotonic()
        world.journal.write("healed")
        if any(fault.slow_line for fault in faults):
            self.slow.append((began, since))
        recovery = recover(world, since, max(fault.grace_s for fault in faults))
        for fault in faults:
            fault.settle()
        done = Done(step, began, since - began, recovery, dict(world.failures() - before))
        world.journal.write("recovered", **(asdict(recovery) if recovery else {}))
        self.done.append(done)
        self._tell(str(done))
        return done

    def report(self) -> Report:
        """Checks all journals once more, and writes the report into the run's folder.

        To be called when the world has ended.
        """
        world = self.world
        found = [*world.violations, *violations(history(world, self.slow))]
        report = Report(
            self.command,
            round(time.monotonic() - self._began, 1),
            _counts(world, self.done, found),
            [str(violation) for violation in found],
            [str(done) for done in self.done],
        )
        (world.folder / "report.json").write_text(json.dumps(asdict(report), indent=2) + "\n")
        return report


def history(world: World, slow: Iterable[tuple[float, float]]) -> History:
    """What is in the files of a world that has ended."""
    journals = {member: read(world.folder / f"{member.name}.jsonl") for member in world.members}
    return History(
        {m.name: lines for m, lines in journals.items() if isinstance(m, Learner)},
        {m.name: lines for m, lines in journals.items() if isinstance(m, Reader)},
        list(world.losses),
        list(slow),
        world.machine_stalls(),
        {member.name: member.log.read_text(errors="replace") for member in world.members},
    )


def soak_command(seed: int, *, steps: int, **options: object) -> str:
    """What to type to have the same faults in the same order."""
    words = ["python", "-m", "tests.chaos.soak", "--seed", str(seed), "--steps", str(steps)]
    for name, value in options.items():
        if value is True:
            words.append(f"--{name}")
        elif value:
            for each in value if isinstance(value, list) else [value]:
                words += [f"--{name}", str(each)]
    return shlex.join(words)


def seen(fault: type[Fault], done: Done) -> bool:
    """Whether the processes noticed what they should have."""
    return not fault.seen or bool(fault.seen & done.failures.keys())


def _counts(world: World, done: list[Done], found: list[Violation]) -> dict[str, Any]:
    learners = [m for m in world.members if isinstance(m, Learner)]
    readers = [m for m in world.members if isinstance(m, Reader)]
    polled: Counter[str] = Counter()
    fetched: Counter[bool] = Counter()
    worst = 0.0
    for reader in readers:
        beats = [line for line in reader.lines if line["ev"] == "beat"]
        worst = max([worst, *(beat["worst_s"] for beat in beats)])
        if beats:
            polled.update({n: beats[-1]["counts"].get(n, 0) for n in ("polls", "refreshes")})
            fetched[reader.shares] += beats[-1]["counts"].get("bytes", 0)
    kinds = Counter(d.step.kind for d in done) + Counter(
        d.step.also[0] for d in done if d.step.also
    )
    recoveries = [d.recovery.seconds for d in done if d.recovery]
    return {
        "faults injected": sum(kinds.values()),
        "by kind": dict(kinds),
        "versions stored": sum(len(learner.stored) for learner in learners),
        "snapshots checked": sum(len(reader.applied) for reader in readers),
        "polls": polled["polls"],
        "refreshes": polled["refreshes"],
        "fetched by readers that share (MB)": round(fetched[True] / 1e6, 1),
        "fetched by the others (MB)": round(fetched[False] / 1e6, 1),
        "failures seen": dict(world.failures()),
        "worst refresh (s)": round(worst, 3),
        "worst recovery (s)": round(max(recoveries, default=0.0), 3),
        "of these disturbed": sum(d.recovery.disturbed > 0 for d in done if d.recovery),
        "violations": len(found),
    }
