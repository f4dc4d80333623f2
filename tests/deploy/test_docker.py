"""The image of the command line: its Dockerfile, linted, and its steps tried without an engine."""

from __future__ import annotations

import fnmatch
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from tests.deploy.server import DEPLOY, missing
from tests.deploy.test_repository import files, project

ROOT = DEPLOY.parent
DOCKERFILE = DEPLOY / "docker" / "Dockerfile"
IGNORE = DEPLOY / "docker" / "Dockerfile.dockerignore"


def instructions() -> list[tuple[str, str]]:
    """Each instruction with its arguments, on one line."""
    text = "\n".join(
        line for line in DOCKERFILE.read_text().splitlines() if not line.startswith("#")
    )
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line.strip()]
    return [(word, " ".join(rest.split())) for word, _, rest in (ln.partition(" ") for ln in lines)]


def copied() -> list[str]:
    """What is copied from the checkout."""
    found = []
    for word, rest in instructions():
        if word == "COPY" and not rest.startswith("--from="):
            found += rest.split()[:-1]
    return found


def test_linter_has_no_complaint() -> None:
    """Hadolint finds nothing, not even a matter of style."""
    beside = Path(sys.executable).with_name("hadolint")
    hadolint = str(beside) if beside.exists() else shutil.which("hadolint")
    if hadolint is None:
        missing("hadolint")
    done = subprocess.run([str(hadolint), DOCKERFILE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_image_is_small_and_not_root() -> None:
    """The final stage starts from a pinned base, has no build tools, and runs as a number."""
    bases = [rest.split()[0] for word, rest in instructions() if word == "FROM"]
    assert len(bases) == 2
    assert len(set(bases)) == 1
    # constraints.txt was made with this version, as it says.
    assert re.fullmatch(r"python:3\.11-slim-\w+", bases[0])
    assert "Python 3.11" in (ROOT / "constraints.txt").read_text()
    final = instructions()[[w for w, _ in instructions()].index("FROM", 1) :]
    assert not any(word in ("RUN", "ADD") for word, _ in final)
    (user,) = [rest for word, rest in final if word == "USER"]
    assert all(int(part) > 0 for part in user.split(":"))
    assert ("ENTRYPOINT", '["redis-state-sync"]') in final
    # The manifests name this user.
    compose = yaml.safe_load((DEPLOY / "compose" / "compose.monitoring.yaml").read_text())
    assert compose["services"]["exporter"]["user"] == user


def test_nothing_else_is_sent_to_the_engine() -> None:
    """All that is copied is let through by the ignore file, and nothing but that."""
    lines = [ln for ln in IGNORE.read_text().splitlines() if ln and not ln.startswith("#")]
    assert lines[0] == "*"
    assert {line[1:] for line in lines if line.startswith("!")} == set(copied())
    assert all((ROOT / name).exists() for name in copied())
    assert not any(fnmatch.fnmatch("deploy/compose/secrets/x", line[1:]) for line in lines[1:])


def test_image_has_the_version_of_the_package() -> None:
    """Compose, Kubernetes and the Dockerfile's own words name the image of this version."""
    image = f"redis-state-sync:{project()['version']}"
    texts = [
        (DEPLOY / name).read_text()
        for name in (
            "docker/Dockerfile",
            "compose/compose.monitoring.yaml",
            "kubernetes/monitoring/exporters.yaml",
        )
    ]
    for text in texts:
        assert set(re.findall(r"redis-state-sync:\d[\w.]*", text)) == {image}


@pytest.mark.timeout(180)
def test_the_package_can_be_built_from_what_is_copied(tmp_path: Path) -> None:
    """The files that the image's build has are enough for pip, and bring the command."""
    for path in files():
        name = path.relative_to(ROOT)
        if name.parts[0] in copied() or str(name) in copied():
            (tmp_path / "build" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, tmp_path / "build" / name)
    (run,) = [rest for word, rest in instructions() if word == "RUN" and "pip install" in rest]
    asked = re.search(r"'\.\[([\w,]+)\]'$", run)
    assert asked
    extras = project()["optional-dependencies"].keys()
    assert set(asked.group(1).split(",")) <= extras
    assert re.search(r"-c constraints\.txt\b", run)
    flags = ("--quiet", "--disable-pip-version-check", "--no-deps", "-w", str(tmp_path / "wheels"))
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", *flags, "."], cwd=tmp_path / "build", check=True
    )
    (wheel,) = (tmp_path / "wheels").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (entries,) = [n for n in archive.namelist() if n.endswith("entry_points.txt")]
        assert b"redis-state-sync = " in archive.read(entries)
        assert "redis_state_sync/cli/exporter.py" in archive.namelist()
