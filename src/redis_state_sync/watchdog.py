"""Ends an embedded server whose driver was killed without a chance to do so."""

from __future__ import annotations

import os
import subprocess
import weakref
from collections.abc import Sequence
from pathlib import Path

# $0 is the pid, $1 the configuration file, the rest is to be removed. The pid may be another
# process's by then: the command line tells.
_SCRIPT = """
cat > /dev/null
is_server() { { tr '\\0' ' ' < /proc/$0/cmdline || ps -o args= -p $0; } | grep -qF -- "$1"; }
if is_server "$1"; then kill $0; fi
# A server that is ending still writes to its folder.
for _ in 1 2 3 4 5 6 7 8 9 10; do is_server "$1" || break; sleep 0.2; done
if is_server "$1"; then kill -9 $0; sleep 0.2; fi
shift
rm -rf -- "$@"
"""


class Watchdog:
    """A shell that waits for the end of a pipe, which only this process holds open.

    Args:
        pid: The server's.
        config: The configuration file on the server's command line, by which it is known.
        leftovers: Files and folders to remove after it.
    """

    def __init__(self, pid: int, config: Path, *, leftovers: Sequence[Path]) -> None:
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", _SCRIPT, str(pid), str(config), *map(str, leftovers)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        _watching.add(self)

    def close(self) -> None:
        """Nothing is left to watch over."""
        self._process.kill()
        self._process.wait()
        self.let_go()

    def let_go(self) -> None:
        """Closes this process's end of the pipe."""
        if self._process.stdin is not None:
            self._process.stdin.close()


_watching: weakref.WeakSet[Watchdog] = weakref.WeakSet()


def _in_forked_child() -> None:
    """The child has a copy of the pipe's end, and may live longer than the driver."""
    for watchdog in _watching:
        watchdog.let_go()


os.register_at_fork(after_in_child=_in_forked_child)
