"""Imported once, in the process that workers are forked from: 64 of them start in a second.

Frozen, so that no garbage collection in a worker copies the pages that it shares with the others.
"""

from __future__ import annotations

import gc

import benchmarks.lean
import benchmarks.limits
import benchmarks.pollers
import benchmarks.readers
import benchmarks.rllib_readers
import benchmarks.scale  # noqa: F401

gc.collect()
gc.freeze()
