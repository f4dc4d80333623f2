"""What one server, its replicas and node caches carry, on paper, from the measured costs.

docs/scaling.md has the formulas; here are the same, with its names.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks import arms, costs
from benchmarks.measures import short
from benchmarks.results import Results
from redis_state_sync.publisher import HEARTBEAT_S

GBIT = 1e9 / 8
HEARTBEATS_HZ = 1 / HEARTBEAT_S


@dataclass(frozen=True)
class Costs:
    """Measured, of one server.

    Args:
        c_poll: Server CPU in s for one poll that finds nothing, without tracking.
        c_fetch: Server CPU in s for a byte fetched.
        c_store: Server CPU in s for a byte published.
    """

    c_poll: float
    c_fetch: float
    c_store: float


@dataclass(frozen=True)
class Load:
    """A training.

    Args:
        runners: N, EnvRunners.
        hz: f, polls per second of each.
        state: S, bytes of a state.
        publishes: v, versions per second.
        per_node: k, EnvRunners of a node that share what one of them fetches; 1 without node cache.
        tracking: Whether the server tells readers, so that polls do not reach it.
    """

    runners: int
    hz: float = 10.0
    state: float = 1e6
    publishes: float = 1.0
    per_node: int = 1
    tracking: bool = False

    @property
    def fetchers(self) -> float:
        """N / k: who fetches each version from a server."""
        return self.runners / self.per_node

    def polls(self) -> float:
        """Polls per second that reach the servers."""
        # A heartbeat refreshes the expiry, which is a change, too.
        return self.runners * (HEARTBEATS_HZ + self.publishes if self.tracking else self.hz)

    def bytes_out(self) -> float:
        """Bytes per second that leave the servers."""
        return self.fetchers * self.publishes * self.state

    def cores(self, c: Costs) -> float:
        """Of one server's single thread: 1 is all that there is."""
        stored = self.publishes * self.state * c.c_store
        return self.polls() * c.c_poll + self.bytes_out() * c.c_fetch + stored


def costs_of(results: Results) -> Costs | None:
    """Medians of the section `costs`, or None if it was not run."""
    poll = results.measures(costs.POLL_CPU)
    fetched = results.measures(costs.FETCH_CPU)
    stored = results.measures(costs.PUBLISH_CPU)
    if not (poll and fetched and stored):
        return None
    return Costs(
        c_poll=poll[0].spread(arms.TCP).median / 1e3 / 1e3,
        c_fetch=fetched[0].spread(arms.TCP).median / 1e9,
        c_store=stored[0].spread(arms.TCP).median / 1e9,
    )


def costs_table(results: Results) -> str:
    """Markdown: the measured values of the symbols."""
    c = costs_of(results)
    if c is None:
        return "_Not measured._"
    rows = [
        ("c_poll", "of a poll that finds nothing", f"{short(1e6 * c.c_poll)} µs"),
        ("c_fetch", "of a GB fetched", f"{short(1e9 * c.c_fetch)} s"),
        ("c_store", "of a GB published", f"{short(1e9 * c.c_store)} s"),
    ]
    lines = ["| symbol | server CPU, over TCP | measured |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def capacity_table(results: Results) -> str:
    """Markdown: what each load asks of the servers, from 100 to 10,000 EnvRunners."""
    c = costs_of(results)
    if c is None:
        return "_Not measured._"
    lines = [
        "| EnvRunners | polls by | node cache | polls/s | GB/s out | cores of a server | "
        "links of 10 Gbit/s | servers (primary and replicas) |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for runners in (100, 1_000, 10_000):
        for tracking in (False, True):
            for per_node in (1, 32):
                load = Load(runners, per_node=per_node, tracking=tracking)
                cores, links = load.cores(c), load.bytes_out() / (10 * GBIT)
                lines.append(
                    f"| {runners:,} | {'tracking' if tracking else 'asking'} "
                    f"| {f'{per_node} a node' if per_node > 1 else 'none'} "
                    f"| {short(load.polls())} | {short(load.bytes_out() / 1e9)} "
                    f"| {short(cores)} | {short(links)} | {servers(cores, links)} |"
                )
    return "\n".join(lines)


def servers(cores: float, links: float) -> int:
    """How many, if none is to be busier than 70 %: queues grow steeply beyond."""
    busiest = max(cores, links) / 0.7
    return max(1, -int(-busiest // 1))
