"""Work in a forked child."""

from __future__ import annotations

import logging
import os
import signal
import traceback
from collections.abc import Callable


def start_child(work: Callable[[], object]) -> int:
    """Runs `work` in a forked child; its pid. A hang ends it after half a minute."""
    child = os.fork()
    if not child:
        status = 1
        try:
            signal.alarm(30)
            logging.disable()
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return child


def end_of(child: int) -> int:
    """Waits for a child; its exit status."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def in_child(work: Callable[[], object]) -> int:
    """Runs `work` in a forked child; its exit status. A hang ends it after half a minute."""
    return end_of(start_child(work))
