"""A process that watches each CPU of the machine, and does nothing else."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.chaos.journal import Journal
from tests.chaos.stalls import Watch


def main() -> None:
    """Runs until its standard input is closed. Arguments: its name, and where to write."""
    journal = Journal(Path(sys.argv[sys.argv.index("--journal") + 1]))
    watches = [
        Watch(lambda start, end: journal.write("stall", since=start, until=end), cpu=cpu)
        for cpu in sorted(os.sched_getaffinity(0))
    ]
    journal.write("start", cpus=len(watches))
    sys.stdin.read()


if __name__ == "__main__":
    main()
