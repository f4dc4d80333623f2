"""Worlds for tests, and what came of them at the end of the session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from redis_state_sync.embedded import find_server
from redis_state_sync.errors import SettingsError
from redis_state_sync.testing import skip_or_fail
from tests.chaos.checks import violations
from tests.chaos.runner import Done, Report, Runner, history
from tests.chaos.sequence import Step
from tests.chaos.world import Plan, World

SMALL = Plan()
_REPORTS = pytest.StashKey[list[tuple[Path, Report]]]()


class Worlds:
    """One world after the other: a new one whenever the last one is broken.

    Args:
        folder: For what they write.
        reports: What came of those that have ended.
    """

    def __init__(self, folder: Path, reports: list[tuple[Path, Report]]) -> None:
        self._folder = folder
        self._reports = reports
        self._plan = Plan()
        self._runner: Runner | None = None
        self._numbers = 0

    def run(self, step: Step, command: str, plan: Plan = SMALL) -> Done:
        """Does a step to the world that is there, and checks all that has happened in it.

        Raises:
            AssertionError: If a promise was broken; it says how to do it again.
        """
        runner = self._there(plan)
        print(step)
        try:
            done = runner.run(step)
        except BaseException:
            self.end()
            raise
        print(done)
        found = runner.world.violations + violations(history(runner.world, runner.slow))
        if found:
            folder = runner.world.folder
            self.end()
            listed = "\n".join(map(str, found))
            pytest.fail(
                f"{step}:\n{listed}\nagain: {command}\njournals and logs: {folder}", pytrace=False
            )
        return done

    def end(self) -> Report | None:
        """Ends the world that is there."""
        if self._runner is None:
            return None
        runner, self._runner = self._runner, None
        runner.world.__exit__()
        report = runner.report()
        self._reports.append((runner.world.folder, report))
        return report

    def _there(self, plan: Plan) -> Runner:
        if self._runner is not None and plan != self._plan:
            self.end()
        if self._runner is None:
            self._numbers += 1
            folder = self._folder / f"world-{self._numbers}"
            folder.mkdir()
            self._plan = plan
            self._runner = Runner(World(folder, plan).__enter__(), "")
        return self._runner


@pytest.fixture(scope="module")
def worlds(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[Worlds]:
    """Worlds that the tests of a module share as long as all goes well."""
    try:
        find_server()
    except SettingsError as error:
        skip_or_fail(str(error))
    reports = pytestconfig.stash.setdefault(_REPORTS, [])
    made = Worlds(tmp_path_factory.mktemp("chaos"), reports)
    yield made
    report = made.end()
    assert report is None or report.violations == []


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """What came of each world."""
    for folder, report in config.stash.get(_REPORTS, []):
        terminalreporter.section(f"chaos: {folder.name}")
        for line in report.lines():
            terminalreporter.write_line(line)
        terminalreporter.write_line(f"journals, logs and report: {folder}")
