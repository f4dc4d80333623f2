"""Every example runs as its docstring says, and prints what it promises."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(*arguments: str) -> str:
    """What an example printed; the test fails with all of its output if it did not succeed."""
    done = subprocess.run(
        [sys.executable, *arguments], cwd=EXAMPLES, capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.ray
@pytest.mark.timeout(180)
def test_quick_start() -> None:
    """The quick start trains, and its results show versions published and fetched."""
    printed = run("quick_start.py", "--iterations", "2")
    assert "iteration 2: return" in printed
    assert "'store_is_up': True" in printed
    assert "'num_fetches_lifetime'" in printed


@pytest.mark.ray
@pytest.mark.timeout(180)
def test_multi_agent_frozen_opponent() -> None:
    """A module that is not trained is sent once: more bytes are saved for it than were sent."""
    printed = run("multi_agent_frozen_opponent.py", "--iterations", "2")
    versions, sent, saved = (
        int(number.replace(",", ""))
        for number in re.findall(
            r"iteration 2: ([\d,]+) versions, ([\d,]+) bytes sent, ([\d,]+)", printed
        )[0]
    )
    # A first version, then in each iteration one with new weights and one with new connectors.
    assert versions == 1 + 2 * 2
    # Two modules of the same size. Sent: both, then one with each new weights. Not sent again: the
    # other one then, and both with each new connectors.
    assert saved / (3 * 2) == pytest.approx(sent / (2 + 2), rel=0.1)
    assert "the opponent is the same in all EnvRunners, before and after: True" in printed


@pytest.mark.ray
@pytest.mark.timeout(180)
def test_custom_env_runner() -> None:
    """An EnvRunner class of the user's own follows the published versions."""
    printed = run("custom_env_runner.py", "--iterations", "4")
    # At least the first version, in each of the two; how many more depends on the machine.
    assert int(re.findall(r"iteration 4: (\d+) versions used", printed)[0]) >= 2


@pytest.mark.ray
@pytest.mark.timeout(180)
def test_in_flight() -> None:
    """Between env steps, weights are fresher than at each sample(), by far more than by chance."""
    printed = run("in_flight.py", "--seconds", "12")
    lags = dict(re.findall(r"refresh='(\w+)': ([\d.]+) updates old", printed))
    assert 1 <= float(lags["steps"]) < 0.8 * float(lags["sample"])


def test_bring_your_own_learner() -> None:
    """Without RLlib, an actor process follows a learner process and gets better by it."""
    printed = run("bring_your_own_learner.py", "--seconds", "2")
    accuracies = [float(number) for number in re.findall(r"accuracy ([\d.]+)", printed)]
    assert len(accuracies) > 1
    assert accuracies[-1] > 0.8


@pytest.mark.ray
@pytest.mark.timeout(180)
def test_user_ci() -> None:
    """The example of a user's own CI passes, in a pytest of its own."""
    assert "3 passed" in run("-m", "pytest", "user_ci", "-p", "no:cacheprovider")
