from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from redis_state_sync.demo.chaos import is_half_way
from redis_state_sync.demo.options import Options
from redis_state_sync.demo.summary import rows, verdict
from redis_state_sync.demo.timeline import EpisodeWindow, Outage, Sample, Timeline

OPTIONS = Options(
    env="CartPole-v1",
    algo="appo",
    seconds=100,
    target=150,
    url=None,
    chaos=True,
    outage_s=6,
    seed=0,
    out=Path("plot.png"),
    core=False,
)


def sample(t: float, newest: int = 5, held: tuple[int | None, ...] = (5, 5), **more: Any) -> Sample:
    defaults = {"stored": newest, "healthy": True, "server_up": True, "env_steps": int(100 * t)}
    return Sample(t=t, newest=newest, held=held, **{**defaults, **more})


def timeline_of(*samples: Sample) -> Timeline:
    timeline = Timeline()
    for one in samples:
        timeline.add(one)
    return timeline


def test_recovery_needs_a_version_that_only_the_server_can_have_given() -> None:
    """Versions that Ray pushed during the outage do not count as recovery."""
    outage = Outage(down_at=10, stored_before=5, up_at=16)
    outage.look(sample(16.5, 9, (9, 9), stored=5, healthy=False))
    assert outage.recovered_at is None
    outage.look(sample(17, 10, (10, 10)))  # stored again: what follows comes from the server
    assert outage.recovered_at is None
    outage.look(sample(17.5, 12, (11, 10)))
    assert outage.recovered_at is None
    outage.look(sample(18, 12, (11, 12)))
    assert outage.recovery_s == 2


def test_nothing_recovers_while_the_server_is_down() -> None:
    """An outage that has not ended has no recovery, whatever readers hold."""
    outage = Outage(down_at=10, stored_before=5)
    outage.look(sample(12, 9, (9, 9)))
    outage.look(sample(13, 12, (12, 12)))
    assert outage.recovered_at is None
    assert outage.seconds is None


def test_lag_is_that_of_the_slowest_reader() -> None:
    """A reader that holds nothing yet is behind by all versions; nobody is ahead."""
    assert sample(1, 7, (7, 4)).lag == 3
    assert sample(1, 7, (7, None)).lag == 7
    assert sample(1, 7, (8, 9)).lag == 0


def test_kill_comes_half_way() -> None:
    """The server goes at half the target or 40 % of the time, and not before readers follow."""
    assert not is_half_way(timeline_of(sample(50, held=(None, 3))), OPTIONS)
    assert not is_half_way(timeline_of(sample(2, mean_return=100.0)), OPTIONS)
    assert not is_half_way(timeline_of(sample(20, mean_return=70.0)), OPTIONS)
    assert is_half_way(timeline_of(sample(20, mean_return=75.0)), OPTIONS)
    assert is_half_way(timeline_of(sample(40)), OPTIONS)
    assert is_half_way(timeline_of(sample(40)), replace(OPTIONS, target=None))


def test_verdict_asks_for_target_and_recovery() -> None:
    """Status 0 needs the target after the recovery; each thing that is missing is named."""
    timeline = timeline_of(sample(1, mean_return=20.0))
    status, sentence = verdict(timeline, OPTIONS)
    assert status == 1
    assert "reached 20.0 and not 150" in sentence
    assert "before the server was killed" in sentence
    timeline.add(sample(2, mean_return=151.0))
    timeline.outage = Outage(down_at=1, stored_before=1, up_at=1.5)
    assert "not every reader" in verdict(timeline, OPTIONS)[1]
    timeline.outage.recovered_at = 3
    timeline.add(sample(4, mean_return=149.0))
    assert "reached 149.0 and not 150" in verdict(timeline, OPTIONS)[1]
    timeline.add(sample(5, mean_return=152.0))
    assert verdict(timeline, OPTIONS)[0] == 0
    assert verdict(timeline, replace(OPTIONS, target=500))[0] == 1
    timeline.outage = None
    assert verdict(timeline, replace(OPTIONS, chaos=False))[0] == 0


def test_summary_tells_what_happened_during_the_outage() -> None:
    """Env steps, lag and pushes are counted within the outage only."""
    timeline = timeline_of(sample(0), sample(10, pushes=1), sample(14, 9, pushes=4), sample(20))
    timeline.outage = Outage(down_at=10, stored_before=5, up_at=15, recovered_at=16)
    table = dict(rows(timeline, OPTIONS))
    assert table["readers meanwhile"] == "500 env steps (100 a second)"
    assert table["largest version lag"].startswith("4 ")
    assert table["pushes by Ray"].startswith("3 ")
    assert table["readers up to date"] == "1.0 s after the server's start"


def test_episode_window_weighs_batches_and_forgets_old_ones() -> None:
    """The mean is over at least the wanted number of latest episodes, by episode."""
    window = EpisodeWindow(4)
    assert window.mean is None
    window.add(0, float("nan"))
    window.add(1, 10.0)
    window.add(3, 50.0)
    assert window.mean == 40.0
    window.add(1, 50.0)
    assert window.mean == 50.0
