"""Measures redis-state-sync beside Ray's own state server and beside raw limits.

    python -m benchmarks poll fetch

Every section takes its arms in turn, round by round, so that a machine that gets busier meets all
of them. What the sections measure and how: docs/benchmarks.md.
"""
