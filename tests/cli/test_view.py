"""What `status` and `watch` show, on terminals of many sizes."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from redis_state_sync import Version
from redis_state_sync.cli import output
from redis_state_sync.cli.overview import Overview, Reader, Standing, _stalest_first, standing_of
from redis_state_sync.cli.sparkline import sparkline
from redis_state_sync.cli.view import view_of
from redis_state_sync.cli.watch import Look, Watched
from redis_state_sync.history import StoredVersion
from redis_state_sync.manifest import Component, Manifest, Piece, Writer

ROOT = Path(__file__).resolve().parents[2]
NEWEST = Version(1764558271042, 531)


def overview(readers: int = 3, components: int = 3, pins: int = 1) -> Overview:
    """One with long names, and with as many of everything as is said."""
    parts = {
        f"rl_module/p{n}_{'x' * 30}": Component((Piece("0" * 32, 1 << 2 * n),))
        for n in range(components)
    }
    manifest = Manifest(Writer("some/writer", "trainer-0", 4211), 1_000, parts, 7)
    found = [
        Reader(
            f"sampler-{n}:{n}:env_runner_{n}",
            Version(NEWEST.generation, 531 - n),
            n,
            n,
            standing_of(n, n, is_kept=n < 2),
        )
        for n in range(readers)
    ]
    return Overview(
        "team/run",
        NEWEST.generation,
        None,
        [StoredVersion(NEWEST, manifest, ("best",))],
        {f"league/{n:05}": NEWEST for n in range(pins)},
        sorted(found, key=_stalest_first),
        2_000,
        86_400.0,
    )


def screen(width: int, colours: str | None = None) -> Console:
    return Console(width=width, file=io.StringIO(), force_terminal=True, color_system=colours)  # type: ignore[arg-type]


def shown_on(console: Console) -> list[str]:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def drawn(what: Any, width: int) -> list[str]:
    console = screen(width)
    console.print(what)
    return shown_on(console)


@pytest.mark.parametrize("width", [30, 60, 80, 200])
def test_any_width(width: int) -> None:
    """Every line is as wide as it should be, and at 80 columns a reader has one to itself."""
    view = Watched("team/run", "redis://redis.example:6379/0", "Valkey 9.1")
    lines = drawn(view.panel(Look(0.0, overview(), rate=2.0), width=width), width)
    assert {len(line) for line in lines} == {width}
    if width >= 80:
        assert any("env_runner_2" in line and "2.0 s ago" in line for line in lines)


@pytest.mark.parametrize(("height", "readers"), [(30, 5), (40, 40), (60, 200)])
def test_any_height(height: int, readers: int) -> None:
    """As many readers are shown as there is room for, and how many others there are is said."""
    found = overview(readers=readers, components=30, pins=9)
    view = Watched("team/run", "redis://redis.example:6379/0", "Valkey 9.1")
    lines = drawn(view.panel(Look(0.0, found), width=100, height=height), 100)
    assert len(lines) <= max(height, 36)
    shown = [line for line in lines if "env_runner" in line]
    assert 3 <= len(shown) <= 20
    assert len(shown) == readers or any(
        f"and {readers - len(shown)} more" in line for line in lines
    )
    assert any("and 22 more" in line for line in lines)
    assert any("and 5 older ones" in line for line in lines)


def test_an_outage() -> None:
    """While nothing can be seen, the reason is on top, and below it what was there before."""
    view = Watched("team/run", "redis://redis.example:6379/0", "Valkey 9.1")
    nothing = drawn(view.panel(Look(0.0, problem="no answer in time"), width=80), 80)
    assert any("no answer in time" in line for line in nothing)
    assert not any("it was" in line for line in nothing)
    drawn(view.panel(Look(1.0, overview(), alive=True), width=80), 80)
    lines = drawn(view.panel(Look(2.0, problem="no answer in time"), width=80), 80)
    places = [
        next(number for number, line in enumerate(lines) if text in line)
        for text in ("no answer in time", "it was:", "env_runner_2")
    ]
    assert places == sorted(places)
    assert not any("at work" in line for line in lines)


def test_how_readers_stand() -> None:
    """Current, behind, beyond what is kept, and silent: by lag and time alone."""
    assert standing_of(0, 10_000, is_kept=True) is Standing.CURRENT
    assert standing_of(1, 10, is_kept=True) is Standing.BEHIND
    assert standing_of(9, 10, is_kept=False) is Standing.STALE
    assert standing_of(None, 10, is_kept=False) is Standing.STALE
    assert standing_of(None, 10, is_kept=True) is Standing.STALE
    assert standing_of(9, 301, is_kept=False) is Standing.SILENT


def test_the_stalest_first() -> None:
    """Another learner's before all, then by lag; those that are silent come last, dimmed."""
    readers = [
        Reader("current", NEWEST, 0, 1.0, Standing.CURRENT),
        Reader("gone", NEWEST, 90, 900.0, Standing.SILENT),
        Reader("behind", NEWEST, 2, 1.0, Standing.BEHIND),
        Reader("other", NEWEST, None, 1.0, Standing.STALE),
        Reader("stale", NEWEST, 30, 1.0, Standing.STALE),
    ]
    found = sorted(readers, key=_stalest_first)
    assert [reader.name for reader in found] == ["other", "stale", "behind", "current", "gone"]
    console = screen(90, "standard")
    console.print(view_of(replace(overview(), readers=found), "x", "y", True))
    lines = {}
    for line in shown_on(console):
        _, _, name = re.sub(r"\x1b\[[\d;]*m", "", line).partition("  ")
        lines[name.split(" ")[0]] = line
    for name, code in {"gone": "2", "stale": "1;31", "behind": "33", "current": "32"}.items():
        assert f"\x1b[{code}m" in lines[name], lines[name]
    assert re.search(r"\x1b\[2m[^\x1b]*gone", lines["gone"])


def test_sparkline() -> None:
    """The largest number is the highest bar, nothing is the lowest, a gap is a gap."""
    assert sparkline([0.0, None, 1.0, 2.0]) == "▁ ▅█"
    assert sparkline([0.0, 0.0]) == "▁▁"
    assert sparkline([]) == ""


def test_a_table_gives_way_to_a_narrow_terminal() -> None:
    """Columns that can be spared go first, and that they do is said; names are folded, not cut."""

    def printed(width: int) -> list[str]:
        made = output.table("namespace", "newest", "size", "writer", right=("size",))
        made.add_row("q" * 60, str(NEWEST), "1.2 MiB", "trainer-0/4211")
        console = screen(width)
        output.print_table(made, console, spare=("writer", "size"))
        return shown_on(console)

    for width, left_out in ((150, None), (70, "writer"), (50, "writer, size")):
        lines = printed(width)
        assert ("trainer-0/4211" in lines[1]) == (left_out is None)
        assert left_out is None or lines[-1].endswith(f"no room: {left_out}")
        assert {"newest", "size" if width > 50 else "newest"} <= set(lines[0].split())
        assert str(NEWEST) in lines[1]
        assert sum(line.count("q") for line in lines) == 60
        assert all(len(line) <= width for line in lines)


def test_a_screen_is_filled_as_far_as_can_be_followed() -> None:
    """A line is as wide as the terminal, up to what can be followed; a file has no width."""
    assert output.readable_width(screen(80)) == 80
    assert output.readable_width(screen(300)) == 100
    assert output.readable_width(Console(file=io.StringIO(), width=300)) is None


def test_what_is_piped_is_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody looks at a width, there is none."""
    monkeypatch.delenv("COLUMNS", raising=False)
    made = output.table("namespace", "newest")
    made.add_row("n" * 500, str(NEWEST))
    console = output.console()
    console.file = io.StringIO()
    output.print_table(made, console, spare=("newest",))
    assert f"{'n' * 500}  {NEWEST}" in console.file.getvalue()


def test_the_picture_of_the_docs(tmp_path: Path) -> None:
    """The script makes the picture from a real server; it has made-up names and loads no fonts."""
    file = tmp_path / "watch.svg"
    script = str(ROOT / "docs/make_watch_image.py")
    words = ["--out", str(file), "--looks", "3", "--interval", "0.2"]
    subprocess.run([sys.executable, script, *words], check=True, timeout=50)
    for picture in (file, ROOT / "docs/images/watch.svg"):
        text = picture.read_text().replace("&#160;", " ")
        for expected in (
            "team/cartpole", "a learner is at work", "versions/s", "redis://redis.example:6379/0",
            "trainer-0", "sampler-1:4107:env_runner_1", "sampler-2:2291:env_runner_3",
            "sampler-3:877:env_runner_4", "current", "best = ", "rl_module/default_policy",
        ):  # fmt: skip
            assert expected in text, expected
        assert "@font-face" not in text
        assert "/tmp" not in text
