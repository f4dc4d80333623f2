"""Fixtures for all tests: the package's own plugin, as a user would load it."""

from __future__ import annotations

from hypothesis import settings

pytest_plugins = ["redis_state_sync.testing"]

# The same examples in every run (a red build must be reproducible), and no limit on the time of
# one: the machine is shared.
settings.register_profile("default", derandomize=True, deadline=None, max_examples=60)
# For `make model`: other examples in each run, ten times as many. A failure prints the call that
# repeats it.
settings.register_profile(
    "long", settings.get_profile("default"), derandomize=False, max_examples=600, print_blob=True
)
settings.load_profile("default")
