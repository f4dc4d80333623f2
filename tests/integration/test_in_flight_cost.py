"""What refreshing in flight costs of a `sample()`. No Ray cluster."""

from __future__ import annotations

import time
from typing import Any

import pytest

from redis_state_sync.embedded import EmbeddedServer
from tests.integration.in_flight import Flight

MOST = 0.01
# Pauses are worked out from a mean, and a look that was disturbed is paid off by later ones.
ROUNDS = 20


@pytest.mark.parametrize("prefetch", [False, True])
@pytest.mark.parametrize("query", ["", "?protocol=3"])
def test_looking_in_vain_costs_less_than_a_hundredth(
    server: EmbeddedServer, prefetch: bool, query: str
) -> None:
    """CartPole without a rest, and nothing new to be found: of the time of a `sample()`, refreshes
    take less than a hundredth, in the better half of the rounds. (Others compute here, too.)
    """
    flight = Flight(server.url + query, refresh="steps", prefetch=prefetch)
    flight.on_step = lambda runner: None
    flight.publish()
    flight.sample(200)
    runner, spent = flight.runner, [0.0]
    inner = runner._redis_state_points.refresh

    def timed(attempt: Any) -> None:
        began = time.perf_counter()
        inner(attempt)
        spent[0] += time.perf_counter() - began

    runner._redis_state_points.refresh = timed
    shares, looks = [], runner._redis_state_points.count
    for _ in range(ROUNDS):
        spent[0], began = 0.0, time.perf_counter()
        flight.sample(200)
        shares.append(spent[0] / (time.perf_counter() - began))
    assert runner._redis_state_points.count - looks >= ROUNDS * 200
    assert 0 < sorted(shares)[ROUNDS // 2] < MOST
    flight.close()
