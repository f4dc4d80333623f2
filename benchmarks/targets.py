"""What the project sets out to reach, and how far it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks import arms, costs, fanout, fetch, poll, publish
from benchmarks.measures import Spread, short
from benchmarks.results import Results

RAW = "of the loopback's own rate"
_LARGE = "128 MB"


@dataclass(frozen=True)
class Target:
    """One goal.

    Args:
        what: In words.
        metric: Of the measure.
        cases: Of the measure; all of them must reach it.
        arm: Ours.
        at_least: The ratio to reach.
        moonshot: The one to dream of.
        baseline: What to compare with.
    """

    what: str
    metric: str
    cases: tuple[str, ...]
    arm: str
    at_least: float
    moonshot: float
    baseline: str = arms.RAY

    @property
    def is_share(self) -> bool:
        """Whether it is a share of a limit, and not a multiple of Ray's."""
        return self.baseline != arms.RAY

    def show(self, ratio: float) -> str:
        """A ratio as this target's are shown."""
        return f"{100 * ratio:.0f} %" if self.is_share else f"{short(ratio)}x"


TARGETS = (
    Target("unchanged poll, TCP, no tracking", poll.P50, ("1 poller",), arms.TCP, 10, 30),
    Target("unchanged poll, tracking", poll.P50, ("1 poller",), arms.TRACKING, 200, 1000),
    Target(
        "polls/s that one server sustains", poll.CAPACITY, ("64 connections",), arms.TCP, 20, 50
    ),
    Target("fetch + apply, from the server", fetch.APPLY, ("64 KB", "1 MB"), arms.UNIX, 2, 3),
    Target("fetch + apply, from the server", fetch.APPLY, ("16 MB",), arms.UNIX, 1.5, 3),
    Target("fetch + apply, on a node that has it", fetch.APPLY, ("64 KB", "1 MB"), arms.NODE, 2, 3),
    Target("fetch + apply, on a node that has it", fetch.APPLY, ("16 MB",), arms.NODE, 1.5, 3),
    Target("fetch + apply, on a node that has it", fetch.APPLY, (_LARGE,), arms.NODE, 2, 20),
    Target(
        "publish until the last reader has applied, one node",
        fanout.LAST_APPLIED,
        (fanout.case_of(16_000_000, 16),),
        arms.NODE,
        2,
        4,
    ),
    Target(
        "publish until the last reader has applied, one node",
        fanout.LAST_APPLIED,
        (fanout.case_of(128_000_000, 16),),
        arms.NODE,
        3,
        10,
    ),
    Target("training thread held by a publish", publish.HELD, (_LARGE,), arms.UNIX, 3, 10),
    Target("memory of readers", costs.MEMORY, (f"{_LARGE}, 16 readers",), arms.NODE, 1, 10),
    Target(f"fetch, {RAW}", fetch.FETCH, (_LARGE,), arms.UNIX, 0.8, 0.95, baseline=arms.RAW_UNIX),
    Target(f"fetch, {RAW}", fetch.FETCH, (_LARGE,), arms.TCP, 0.8, 0.95, baseline=arms.RAW_TCP),
)

# Why one falls short: by hand, for those that do. Keys: `what` and the case.
_CHECKS = (
    "three round trips, and each of 20 tensors is checked before the first one changes: the "
    "transfer itself is a fifth of it"
)
_STORED = (
    "the version is stored before anyone may see it, which Ray's server does not do; then so many "
    "readers on two cores give back the pages that they have read of the version before"
)
REASONS: dict[tuple[str, str], str] = {
    ("fetch + apply, from the server", "64 KB"): _CHECKS,
    ("fetch + apply, from the server", "1 MB"): _CHECKS,
    ("fetch + apply, from the server", "16 MB"): (
        "each byte crosses a socket and is copied once more; Ray's weights lie in shared memory. "
        "So do ours with the node cache, which is the default: below"
    ),
    ("fetch + apply, on a node that has it", "1 MB"): _CHECKS,
    ("publish until the last reader has applied, one node", "16 MB, 16 readers"): _STORED,
    ("publish until the last reader has applied, one node", "128 MB, 16 readers"): _STORED,
    (f"fetch, {RAW}", _LARGE): (
        "the digest of every byte is worked out, on two cores beside server and kernel"
    ),
}


def table(results: Results, targets: Sequence[Target] = TARGETS) -> str:
    """Markdown: each target, what was measured, whether it was met, and if not, why."""
    lines = [
        "| what | case | arm | at least | moonshot | measured (p10–p90) | met | why not |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for target in targets:
        for case in target.cases:
            ratio = _ratio(results, target, case)
            measured, met = "not measured", "–"
            if ratio is not None:
                shown = [target.show(x) for x in (ratio.median, ratio.low, ratio.high)]
                measured = f"{shown[0]} ({shown[1]}–{shown[2]})"
                met = _verdict(target, ratio.median)
            reason = REASONS.get((target.what, case), "") if met == "no" else ""
            lines.append(
                f"| {target.what} | {case} | {arms.TITLES[target.arm]} "
                f"| {target.show(target.at_least)} | {target.show(target.moonshot)} "
                f"| {measured} | {met} | {reason} |"
            )
    return "\n".join(lines)


def summary(results: Results, targets: Sequence[Target] = TARGETS) -> str:
    """Markdown: the same in short, for the README."""
    lines = ["| beside Ray's own state server, on one node | |", "|---|---|"]
    for target in targets:
        for case in target.cases:
            ratio = _ratio(results, target, case)
            if ratio is not None and not target.is_share:
                better = "less" if target.metric in (costs.MEMORY, publish.HELD) else "faster"
                if ratio.median < 1:
                    better = "(Ray's is better)"
                verdict = f"**{target.show(ratio.median)}** {better}"
                lines.append(f"| {target.what}, {case} ({arms.TITLES[target.arm]}) | {verdict} |")
    return "\n".join(lines) if len(lines) > 2 else "_Not measured._"


def _verdict(target: Target, ratio: float) -> str:
    if ratio >= target.moonshot:
        return "**moonshot**"
    return "yes" if ratio >= target.at_least else "no"


def _ratio(results: Results, target: Target, case: str) -> Spread | None:
    measure = results.find(target.metric, case)
    if measure is None or target.arm not in measure.values:
        return None
    return measure.ratio(target.arm, target.baseline)
