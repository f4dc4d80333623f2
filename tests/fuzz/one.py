"""Fuzzes one target in this process, which libFuzzer ends: see `python -m tests.fuzz`."""

from __future__ import annotations

import gc
import importlib
import random
import resource
import sys

import atheris

# Instrumented: what parses. Not numpy and torch, whose Python is not ours.
OURS = ["redis_state_sync", "redis", "tests.fuzz.targets"]
# Beyond what importing takes. An input that asks for more gets a MemoryError, which is a finding.
MEMORY = 2 << 30


def main(name: str, arguments: list[str]) -> None:
    import torch  # noqa: F401 - before instrumenting, which would take minutes

    with atheris.instrument_imports(include=OURS):
        targets = importlib.import_module("tests.fuzz.targets")
    mutate = importlib.import_module("tests.fuzz.mutate")
    target = targets.TARGETS[name]

    def mutator(data: bytes, max_size: int, seed: int) -> bytes:
        return target.mutator(data, random.Random(seed), atheris.Mutate)[:max_size]

    def crossover(data: bytes, other: bytes, max_size: int, seed: int) -> bytes:
        return mutate.spliced(data, other, random.Random(seed), atheris.Mutate)[:max_size]

    with open("/proc/self/statm") as file:
        virtual = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (virtual + MEMORY, resource.RLIM_INFINITY))
    own = {} if target.mutator is None else {"custom_mutator": mutator}
    if name in ("codec", "weights"):
        own["custom_crossover"] = crossover
    gc.freeze()  # What was imported need not be looked at again and again.
    atheris.Setup([sys.argv[0], *arguments], target.run, internal_libfuzzer=True, **own)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
