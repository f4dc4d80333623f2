"""docs/getting-started.md is followed, from the installation to the end, as a reader would."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks
from tests.docs.servers import free_port

PAGE = "docs/getting-started.md"
BACKGROUND = "background"


def script(folder: Path) -> str:
    """The page as one script: its commands, and its files written just before they are used."""
    parts = ["set -euo pipefail"]
    for block in blocks(PAGE, "bash", "python"):
        if block.language == "python":
            name = block.mark.removeprefix("file ")
            (folder / f"{name}.source").write_text(block.text)
            parts.append(f"cp {name}.source {name}")
        elif block.mark != BACKGROUND:
            parts.append(f"echo '== line {block.line}'\n{block.text}")
    return "\n".join(parts)


def environment(folder: Path) -> dict[str, str]:
    """A virtual environment of its own, which sees the packages of this one: they take minutes.

    What the page installs itself is installed there.
    """
    venv.create(folder / "venv", with_pip=True)
    inside = folder / "venv" / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    for older in inside.glob("setuptools*"):  # Of the Python's own wheels: it would come first.
        shutil.rmtree(older)
    (inside / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    path = f"{folder / 'venv' / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    ours = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return {**ours, "PATH": path, "RAY_USAGE_STATS_ENABLED": "0"}


@contextmanager
def in_background(command: str, folder: Path) -> Iterator[None]:
    """Runs a command in a terminal of its own, as it were, and ends all of it in the end."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    log = folder / "background.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            ["bash", "-c", command],
            cwd=folder,
            env=environment,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            yield
            assert process.poll() is None, log.read_text()
        finally:
            os.killpg(process.pid, signal.SIGINT)
            process.wait(10)


@pytest.mark.ray
@pytest.mark.timeout(300)
def test_the_page_can_be_followed(tmp_path: Path) -> None:
    """Each command of the page succeeds, and shows what the page says that it shows."""
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, checkout)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "src", checkout / "src", ignore=ignored)
    # Nothing is downloaded: all of it, hatchling too, is what the extra `dev` brings.
    offline = "pip install --no-index --no-build-isolation "
    text = script(checkout).replace("pip install ", offline)
    port = str(free_port())
    for path in checkout.glob("*.source"):
        path.write_text(path.read_text().replace("6379", port))
    others = environment(tmp_path)
    (server,) = (block.text for block in blocks(PAGE) if block.mark == BACKGROUND)
    with in_background(server.replace("6379", port), checkout):
        done = subprocess.run(
            ["bash", "-c", text.replace("6379", port)],
            cwd=checkout,
            env=others,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=270,
            check=False,
        )
    printed = done.stdout
    if done.returncode != 0:
        line = re.findall(r"^== line (\d+)$", printed, re.M)[-1:]
        pytest.fail(f"{PAGE}:{''.join(line)}: a command failed\n{printed[-6000:]}", pytrace=False)
    assert re.search(r"^redis-state-sync \d+\.\d+", printed, re.M)
    assert "Successfully installed redis-state-sync" in printed
    fetches = [float(f) for f in re.findall(r"^\d{13}-\d+ ([\d.]+) fetches", printed, re.M)]
    assert len(fetches) == 4, printed[-6000:]
    assert fetches[-1] > 0
    assert "no sign of one" in printed
    assert "after-four" in printed
    assert re.search(r"^newest: \d{13}-\d+ \[.*'rl_module/default_policy'", printed, re.M)
    assert re.search(r"^pinned: \d{13}-\d+ [1-9]\d* arrays", printed, re.M)
    assert "store is up: True" in printed
    assert re.search(r"^stored: \d{13}-3$", printed, re.M)


def test_every_block_is_run() -> None:
    """No block of the page is left out: each is bash, or a file that a command runs."""
    found = blocks(PAGE)
    assert {block.language for block in found} == {"bash", "python"}
    commands = "".join(block.text for block in found if block.language == "bash")
    for block in found:
        if block.language == "python":
            assert block.mark.startswith("file "), str(block)
            assert f"python {block.mark.removeprefix('file ')}\n" in commands, str(block)
