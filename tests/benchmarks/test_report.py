"""What is made of measurements: medians, ratios, tables, pages."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("ray")

from benchmarks import (
    arms,
    costs,
    curve_report,
    fanout,
    fetch,
    filling,
    lag_report,
    pages,
    plots,
    poll,
    publish,
    scaling,
    targets,
)
from benchmarks.lean import poll_bytes
from benchmarks.measures import Measure, Spread, percentile, short
from benchmarks.options import Options
from benchmarks.results import Results, ResultsError, Section
from benchmarks.states import MB, change, label, make_state, size
from redis_state_sync import Version

ROOT = Path(__file__).resolve().parents[2]
KNOWN = pages.BLOCKS.keys() | lag_report.BLOCKS.keys() | curve_report.BLOCKS.keys()


def section(name: str, measures: list[Measure], *, boot: str = "b") -> Section:
    facts = {"cpu": "some", "cores": 2, "boot": boot}
    return Section(name, facts, {"rounds": 2}, [0.1], [0.2], 3.0, measures, ["left out: x"])


def measured(metric: str, case: str, unit: str = "ms", **values: list[float]) -> Measure:
    return Measure(metric, case, unit, values={k.replace("_", "-"): v for k, v in values.items()})


def test_percentiles_are_interpolated() -> None:
    """A percentile lies between the two values that are next to it, as numpy's."""
    assert percentile([4.0, 1.0, 3.0, 2.0], 50) == 2.5
    assert percentile([1.0, 2.0], 90) == pytest.approx(1.9)
    assert percentile([7.0], 10) == 7.0


def test_ratio_is_of_rounds() -> None:
    """A ratio is the median of the rounds' own ratios, and above 1 where ours is better."""
    times = measured("m", "c", ray=[10.0, 100.0, 30.0], tcp=[5.0, 10.0, 10.0])
    assert times.ratio("tcp", "ray").median == 3
    rates = Measure("m", "c", "x/s", more_is_better=True, values={"ray": [2.0], "tcp": [8.0]})
    assert rates.ratio("tcp", "ray").median == 4


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.01234, "0.0123"),
        (1.5, "1.5"),
        (12.345, "12.3"),
        (3.0, "3"),
        (12345.6, "12,346"),
    ],
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    """A number is shown with three significant digits, or all that stand before the point."""
    assert short(value) == text


def test_a_single_value_has_no_spread() -> None:
    """Of one value only that is shown, and of several also the 10th and 90th percentile."""
    assert str(Spread.of([2.0])) == "2"
    assert str(Spread.of([1.0, 2.0, 3.0])) == "2 (1.2–2.8)"


def test_sections_of_two_boots_are_not_put_together(tmp_path: Path) -> None:
    """Results of two machines, or of two boots of one, are refused."""
    section("poll", [], boot="one").save(tmp_path)
    section("fetch", [], boot="two").save(tmp_path)
    with pytest.raises(ResultsError, match=r"poll: one.*run them again"):
        Results.load(tmp_path)


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    """A section survives its file."""
    written = section("poll", [measured(poll.P50, "1 poller", "µs", ray=[1.0], tcp=[0.5])])
    written.save(tmp_path)
    assert Results.load(tmp_path).sections == {"poll": written}


def test_state_has_its_size_and_changes_everywhere() -> None:
    """A state of n bytes is at most n and nearly n bytes long, and a change leaves no weight."""
    for nbytes in (64_000, MB):
        state = make_state(nbytes)
        assert 0.95 * nbytes < size(state) <= nbytes
        assert len(state) == 20
    before = {name: array.copy() for name, array in state.items()}
    change(state)
    assert all((state[name] != before[name]).all() for name in state)


def test_lean_clients_send_our_poll() -> None:
    """Simulated pollers send what the package's own poller sends, and its look at the top."""
    poll_command, look = poll_bytes("some/run", Version(7, 1))
    assert poll_command.startswith(b"*6\r\n$9\r\nXREVRANGE\r\n")
    assert b"{some/run}" in poll_command
    assert b"\r\n7-2\r\n" in poll_command
    assert look != poll_command
    assert b"XREVRANGE" in look


def cases() -> dict[str, set[str]]:
    """What a whole run measures."""
    o = Options()
    groups = {fanout.case_of(n, count) for n in o.fanned_out for count in o.readers}
    sizes = {label(n) for n in o.sizes}
    return {
        poll.P50: {poll.pollers_case(n) for n in o.pollers},
        poll.CAPACITY: {poll.CAPACITY_CASE},
        fetch.FETCH: sizes,
        fetch.APPLY: sizes,
        publish.HELD: {label(n) for n in o.published},
        fanout.LAST_APPLIED: groups,
        costs.MEMORY: groups,
    }


@pytest.mark.parametrize("target", targets.TARGETS, ids=lambda t: f"{t.what}, {t.cases[0]}")
def test_targets_are_measured(target: targets.Target) -> None:
    """Each target is of something that a whole run measures."""
    assert set(target.cases) <= cases()[target.metric]


def test_target_table_tells_what_is_met() -> None:
    """A target is met from its ratio on, a moonshot from its own on; else a reason is due."""
    target = targets.Target("t", "m", ("c",), arms.TCP, 2, 10)
    for ours, verdict in ((6.0, "no"), (5.0, "yes"), (1.0, "**moonshot**")):
        results = Results([section("s", [measured("m", "c", ray=[10.0], tcp=[ours])])])
        assert f"| {verdict} |" in targets.table(results, [target])
    assert "| not measured | – |" in targets.table(Results([section("s", [])]), [target])


@pytest.mark.parametrize("page", pages.PAGES)
def test_pages_have_known_blocks(page: str) -> None:
    """Every marker of a page has its table, and tables are filled in twice as once."""
    text = (ROOT / page).read_text()
    assert set(filling.names_in(text)) <= KNOWN
    assert filling.names_in(text)
    results = Results(
        [section("poll", [measured(poll.P50, "1 poller", "µs", ray=[8.0], tcp=[2.0])])]
    )
    once = pages.fill(text, results)
    assert pages.fill(once, results) == once


def test_every_block_has_its_place() -> None:
    """No table is made that no page shows."""
    shown = [name for page in pages.PAGES for name in filling.names_in((ROOT / page).read_text())]
    assert sorted(n for n in shown if n not in KNOWN - pages.BLOCKS.keys()) == sorted(pages.BLOCKS)


def test_tables_say_how_much_better() -> None:
    """A cell has median and spread, and the ratio to Ray's below it."""
    results = Results(
        [section("poll", [measured(poll.P50, "1 poller", "µs", tcp=[2.0, 2.0], ray=[8.0, 12.0])])]
    )
    text = pages.fill("<!-- bench:poll-p50 -->\nold\n<!-- /bench -->", results)
    assert "| 1 poller | 10 (8.4–11.6) | 2<br>5 (4.2–5.8) x |" in text
    assert "old" not in text


def test_capacity_follows_the_costs() -> None:
    """A server's cores are polls, bytes out and bytes in, each by its measured cost."""
    c = scaling.Costs(c_poll=1e-5, c_fetch=1e-10, c_store=2e-10)
    load = scaling.Load(1000, hz=10, state=1e6, publishes=1, per_node=10)
    assert load.cores(c) == pytest.approx(10_000 * 1e-5 + 100e6 * 1e-10 + 1e6 * 2e-10)
    assert scaling.Load(1000, tracking=True).polls() == 3000
    assert scaling.servers(0.7, 0.1) == 1
    assert scaling.servers(0.71, 0.1) == 2


def test_plots_show_what_was_measured(tmp_path: Path) -> None:
    """A plot is drawn of each group of which something was measured, and of no other."""
    results = Results(
        [section("f", [measured(fetch.FETCH, "1 MB", ray=[1.0, 2.0], raw_tcp=[0.5, 1])])]
    )
    assert plots.save_all(results, tmp_path) == [tmp_path / "bench-fetch.png"]
    assert (tmp_path / "bench-fetch.png").read_bytes().startswith(b"\x89PNG")
