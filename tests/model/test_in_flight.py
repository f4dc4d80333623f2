"""Readers that look ahead and refresh in flight: whatever befalls, they have what they say."""

from __future__ import annotations

import logging

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model.flight import FlightMachine
from tests.model.places import places


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["memory", "fakeredis"])
def test_acting_readers(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """Applied once, whole or by its weights and then the rest, from what was prefetched or newer;
    never back, never a rejected version, through outages, losses and take-overs: C10, C15, C19.
    """
    caplog.set_level(logging.CRITICAL, "redis_state_sync")
    with places(kind) as make_place:
        machine = type("Here", (FlightMachine,), {"make_place": staticmethod(make_place)})
        examples = settings().max_examples * (2 if kind == "memory" else 1)
        run_state_machine_as_test(
            machine, settings=settings(max_examples=examples, stateful_step_count=50)
        )
