"""Keeps what Ray's C++ side and RLlib write to stderr at start off the screen."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator

_STDERR = 2


@contextlib.contextmanager
def stderr_kept() -> Iterator[None]:
    """Holds back what this process writes to stderr; shows it if the block raises."""
    sys.stderr.flush()
    real = os.dup(_STDERR)
    failed = False
    with tempfile.TemporaryFile() as kept:
        os.dup2(kept.fileno(), _STDERR)
        try:
            yield
        except Exception:
            failed = True
            raise
        finally:
            sys.stderr.flush()
            os.dup2(real, _STDERR)
            os.close(real)
            if failed:
                kept.seek(0)
                sys.stderr.write(kept.read().decode(errors="replace"))
