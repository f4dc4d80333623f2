"""``python -m tests.chaos.soak``: faults in a random order, for as long as one likes."""

from __future__ import annotations

import argparse
import itertools
import logging
import sys
import time
import traceback
from pathlib import Path

from tests.chaos.faults import REGISTRY
from tests.chaos.runner import Runner, soak_command
from tests.chaos.sequence import steps
from tests.chaos.world import Plan, World


def main(arguments: list[str] | None = None) -> int:
    """Returns 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.soak", description=__doc__)
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of everything")
    parser.add_argument("--seconds", type=float, default=1800.0, help="begin no fault after them")
    parser.add_argument("--steps", type=int, help="so many faults, however long it takes")
    parser.add_argument("--longest", type=float, default=5.0, help="seconds that a fault may last")
    parser.add_argument("--only", choices=sorted(REGISTRY), action="append", default=[])
    parser.add_argument("--without", choices=sorted(REGISTRY), action="append", default=[])
    parser.add_argument("--alone", action="store_true", help="never two faults at a time")
    parser.add_argument("--large", action="store_true", help="a component of several pieces")
    parser.add_argument("--signed", action="store_true", help="with a signing key")
    parser.add_argument("--every", type=float, default=0.05, help="seconds between two states")
    parser.add_argument("--folder", type=Path, help="for journals, logs and the report")
    options = parser.parse_args(arguments)
    folder = options.folder or Path("out") / f"chaos-{options.seed}-{int(time.time())}"
    folder.mkdir(parents=True)
    logging.basicConfig(filename=folder / "newcomers.log", level=logging.INFO)
    print(f"seed {options.seed}, in {folder}", flush=True)

    kinds = set(options.only or REGISTRY) - set(options.without)
    planned = steps(options.seed, longest_s=options.longest, pairs=not options.alone, kinds=kinds)
    plan = Plan(options.seed, every_s=options.every, large=options.large, signed=options.signed)
    began = time.monotonic()
    broken = None
    with World(folder, plan) as world:
        runner = Runner(world, "")
        for number in itertools.count(1):
            over = time.monotonic() - began > options.seconds
            if (number > options.steps) if options.steps else over:
                break
            step = next(planned)
            print(f"{time.monotonic() - began:7.1f} s  {number:4}  {step}", flush=True)
            try:
                done = runner.run(step)
            except KeyboardInterrupt:
                break
            except Exception as error:
                world.violation(0, "the test itself", f"{step}: {error!r}")
                traceback.print_exc()
                broken = error
            else:
                print(f"{'':17}{str(done)[len(str(step)) + 2 :]}", flush=True)
            if broken or done.recovery is None:
                break
    runner.command = soak_command(
        options.seed,
        steps=number if world.violations else len(runner.done),
        longest=options.longest,
        only=options.only,
        without=options.without,
        alone=options.alone,
        large=options.large,
        signed=options.signed,
        every=options.every,
    )
    report = runner.report()
    print("\n".join(report.lines()))
    if report.violations:
        print(f"again: {report.command}\njournals, logs and report are in {folder}")
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
