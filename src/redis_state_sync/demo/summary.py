"""What the run comes to: a table, and whether it succeeded."""

from __future__ import annotations

from redis_state_sync.demo.options import Options
from redis_state_sync.demo.timeline import Outage, Timeline


def verdict(timeline: Timeline, options: Options) -> tuple[int, str]:
    """The exit status, and a sentence that says why."""
    target, outage = options.target, timeline.outage
    recovered_at = outage.recovered_at if outage is not None else None
    # What was learned before the server was killed proves nothing about the time after.
    best = timeline.best_return_since(recovered_at or 0.0)
    problems = []
    if best is None:
        problems.append("no episode ended")
    elif target is not None and best < target:
        problems.append(
            f"the mean return reached {best:.1f} and not {target:g} within {options.seconds:g} s "
            "(slow machine? try --seconds)"
        )
    if options.chaos:
        if outage is None:
            problems.append("the run ended before the server was killed")
        elif outage.up_at is None:
            problems.append("the server did not come back")
        elif outage.recovered_at is None:
            problems.append("not every reader got a version from the server after it came back")
    if problems:
        return 1, "FAILED: " + "; ".join(problems)
    reached = f"reached a mean return of {best:.1f}"
    if not options.chaos:
        return 0, f"OK: {reached}"
    return 0, f"OK: {reached}, through a server that was killed and came back empty"


def rows(timeline: Timeline, options: Options) -> list[tuple[str, str]]:
    """Name and value of everything worth telling."""
    last, best = timeline.last, timeline.best_return
    if last is None:
        return []
    target = f" (target {options.target:g})" if options.target is not None else ""
    table = [
        ("trained", f"{last.t:.1f} s, {last.env_steps:,} env steps"),
        ("best mean return", "-" if best is None else f"{best:.1f}{target}"),
        ("versions published", f"{last.published}, {last.dropped} more replaced by later ones"),
    ]
    if timeline.outage is not None:
        table += _outage_rows(timeline, timeline.outage, options)
    failures = ", ".join(f"{who} x{n}" for who, n in sorted(last.failures.items())) or "none"
    return [*table, ("failures by category", failures)]


def _outage_rows(timeline: Timeline, outage: Outage, options: Options) -> list[tuple[str, str]]:
    last = timeline.last
    until = outage.up_at if outage.up_at is not None else (last.t if last else outage.down_at)
    end = outage.recovered_at if outage.recovered_at is not None else until
    sampled = timeline.env_steps_at(until) - timeline.env_steps_at(outage.down_at)
    away = "did not come back" if outage.seconds is None else f"{outage.seconds:.1f} s"
    seconds = max(until - outage.down_at, 0.001)
    table = [
        ("server away", f"{away}, from {outage.down_at:.1f} s on"),
        ("readers meanwhile", f"{sampled:,.0f} env steps ({sampled / seconds:,.0f} a second)"),
        ("largest version lag", f"{timeline.worst_lag(outage.down_at, end)} during the outage"),
    ]
    if not options.core:
        pushed = timeline.pushes_between(outage.down_at, end)
        table.append(("pushes by Ray", f"{pushed} while the server was down"))
    recovery = outage.recovery_s
    return [
        *table,
        (
            "readers up to date",
            "never again" if recovery is None else f"{recovery:.1f} s after the server's start",
        ),
    ]
