"""Forked children of a test."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable


def in_child(work: Callable[[], None]) -> int:
    """Runs `work` in a forked child; its exit status."""
    child = os.fork()
    if not child:
        status = 1
        try:
            signal.alarm(30)
            logging.disable()
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
