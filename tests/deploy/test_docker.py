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
FOLDER = DEPLOY / "docker"
DOCKERFILES = {"redis-state-sync": "Dockerfile", "redis-state-sync-ray": "Dockerfile.ray"}
USERS = {"Dockerfile": "10001:10001", "Dockerfile.ray": "1000:100"}

every_file = pytest.mark.parametrize("name", USERS)


def instructions(name: str) -> list[tuple[str, str]]:
    """Each instruction with its arguments, on one line."""
    text = "\n".join(
        line for line in (FOLDER / name).read_text().splitlines() if not line.startswith("#")
    )
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line.strip()]
    return [(word, " ".join(rest.split())) for word, _, rest in (ln.partition(" ") for ln in lines)]


def copied(name: str) -> list[str]:
    """What is copied from the checkout."""
    found = []
    for word, rest in instructions(name):
        if word == "COPY" and not rest.startswith("--from="):
            found += [part for part in rest.split()[:-1] if not part.startswith("--")]
    return found


def test_every_file_is_known() -> None:
    """The folder holds the Dockerfiles that these tests look at, each with its ignore file."""
    found = {path.name for path in FOLDER.iterdir()}
    assert found == {one for name in USERS for one in (name, f"{name}.dockerignore")}


@every_file
def test_linter_has_no_complaint(name: str) -> None:
    """Hadolint finds nothing, not even a matter of style."""
    beside = Path(sys.executable).with_name("hadolint")
    hadolint = str(beside) if beside.exists() else shutil.which("hadolint")
    if hadolint is None:
        missing("hadolint")
    done = subprocess.run(
        [str(hadolint), FOLDER / name], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@every_file
def test_runs_as_a_number_that_is_not_root(name: str) -> None:
    """Each stage starts from a pinned base, and the last one ends as the user of the manifests."""
    bases = [rest.split()[0] for word, rest in instructions(name) if word == "FROM"]
    for base in bases:
        assert re.search(r":\d+\.\d+", base), base
    users = [rest for word, rest in instructions(name) if word == "USER"]
    assert users == [USERS[name]]
    assert all(int(part) > 0 for part in users[0].split(":"))


def test_image_is_small() -> None:
    """The final stage has the Python of the constraints, no build tools, and the command."""
    found = instructions("Dockerfile")
    bases = [rest.split()[0] for word, rest in found if word == "FROM"]
    assert len(bases) == 2
    assert len(set(bases)) == 1
    # constraints.txt was made with this version, as it says.
    assert re.fullmatch(r"python:3\.11-slim-\w+", bases[0])
    assert "Python 3.11" in (ROOT / "constraints.txt").read_text()
    final = found[[word for word, _ in found].index("FROM", 1) :]
    assert not any(word in ("RUN", "ADD") for word, _ in final)
    assert ("ENTRYPOINT", '["redis-state-sync"]') in final


def test_manifests_name_these_users() -> None:
    """Compose and Kubernetes run the images as the user that they were made for."""
    compose = yaml.safe_load((DEPLOY / "compose" / "compose.monitoring.yaml").read_text())
    assert compose["services"]["exporter"]["user"] == USERS["Dockerfile"]
    pods = yaml.safe_load_all((DEPLOY / "kubernetes/monitoring/exporters.yaml").read_text())
    context = next(iter(pods))["spec"]["template"]["spec"]["securityContext"]
    assert f"{context['runAsUser']}:{context['runAsGroup']}" == USERS["Dockerfile"]
    cluster = yaml.safe_load((DEPLOY / "kuberay" / "raycluster.yaml").read_text())
    context = cluster["spec"]["headGroupSpec"]["template"]["spec"]["securityContext"]
    assert f"{context['runAsUser']}:{context['runAsGroup']}" == USERS["Dockerfile.ray"]


@every_file
def test_nothing_else_is_sent_to_the_engine(name: str) -> None:
    """All that is copied is let through by the ignore file, and nothing but that."""
    text = (FOLDER / f"{name}.dockerignore").read_text()
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert lines[0] == "*"
    assert {line[1:] for line in lines if line.startswith("!")} == set(copied(name))
    assert all((ROOT / source).exists() for source in copied(name))
    assert not any(fnmatch.fnmatch("deploy/compose/secrets/x", line[1:]) for line in lines[1:])


def test_images_have_the_version_of_the_package() -> None:
    """Wherever one of the images is named, it is with this version."""
    version = project()["version"]
    for image, file in DOCKERFILES.items():
        found = {
            (path.name, tag)
            for path in DEPLOY.rglob("*")
            if path.is_file() and "secrets" not in path.parts
            for tag in re.findall(rf"(?<![\w-]){image}:(\d[\w.]*\w)", path.read_text())
        }
        assert {tag for _, tag in found} == {version}
        # At least in its own words, and where it is run.
        assert file in {name for name, _ in found}
        assert len(found) > 2


@every_file
@pytest.mark.timeout(180)
def test_the_package_can_be_built_from_what_is_copied(name: str, tmp_path: Path) -> None:
    """The files that the image's build has are enough for pip, and bring the command."""
    for path in files():
        place = path.relative_to(ROOT)
        if place.parts[0] in copied(name):
            (tmp_path / "build" / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, tmp_path / "build" / place)
    (run,) = [rest for word, rest in instructions(name) if word == "RUN" and "pip install" in rest]
    asked = re.search(r"'\.\[([\w,]+)\]'$", run)
    assert asked
    extras = project()["optional-dependencies"].keys()
    assert set(asked.group(1).split(",")) <= extras
    assert ("-c constraints.txt" in run) == ("constraints.txt" in copied(name))
    flags = ("--quiet", "--disable-pip-version-check", "--no-deps", "-w", str(tmp_path / "wheels"))
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", *flags, "."], cwd=tmp_path / "build", check=True
    )
    (wheel,) = (tmp_path / "wheels").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (entries,) = [n for n in archive.namelist() if n.endswith("entry_points.txt")]
        assert b"redis-state-sync = " in archive.read(entries)
        assert "redis_state_sync/cli/exporter.py" in archive.namelist()
