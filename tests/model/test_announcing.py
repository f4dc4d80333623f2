"""Announcing and following, without threads: every order of events is one that hypothesis chose."""

from __future__ import annotations

import logging

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model.machine import Machine
from tests.model.places import places


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["memory", "fakeredis", "valkey"])
def test_announcing(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """Versions never go back, each is whole and its owner's, and all heals: C9, C10, C16, C19."""
    caplog.set_level(logging.CRITICAL, "redis_state_sync")  # Thousands of warnings, all meant.
    with places(kind) as make_place:
        machine = type("Here", (Machine,), {"make_place": staticmethod(make_place)})
        # Most of them where they cost least.
        examples = settings().max_examples * (4 if kind == "memory" else 1)
        run_state_machine_as_test(
            machine, settings=settings(max_examples=examples, stateful_step_count=50)
        )
