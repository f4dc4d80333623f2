"""The repository itself: what a fresh clone needs, and what must never be in one."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

ROOT = Path(__file__).resolve().parents[2]

# Put together here, so that this file does not find itself.
HOSTS = ["pypi" + ".org", "pythonhosted" + ".org", "npmjs" + ".org", "npmjs" + ".com"]
HOSTS += ["deb.debian" + ".org", "security.debian" + ".org", "docker" + ".io"]
HOSTS += ["download.pytorch" + ".org", "ghcr" + ".io", "quay" + ".io"]
# Absolute paths of one machine, not parts of a longer path or of an address.
MACHINE = re.compile(r"(?<![\w.~/*-])/(?:work|root|Users|home/\w+|opt/(?:wheels|pypi))/")


def files() -> list[Path]:
    """What git tracks, or would after `git add`."""
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others"]
    done = subprocess.run(
        [*command, "--exclude-standard"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return [ROOT / name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()]


def texts() -> dict[str, str]:
    found = {}
    for path in files():
        data = path.read_bytes()
        if b"\0" not in data:
            found[str(path.relative_to(ROOT))] = data.decode()
    assert found
    return found


def test_no_file_names_this_machine_or_a_registry() -> None:
    """No tracked file holds an absolute path of one machine or the host name of a registry."""
    found = [
        f"{name}:{number}: {line.strip()[:100]}"
        for name, text in texts().items()
        for number, line in enumerate(text.splitlines(), 1)
        if MACHINE.search(line) or any(host in line for host in HOSTS)
    ]
    assert found == []


def test_no_secret_is_tracked() -> None:
    """No password file, private key or rendered users file is tracked."""
    for name, text in texts().items():
        assert "secrets/" not in name
        assert ("-----BEGIN" + " ") not in text or "PRIVATE KEY" not in text, name
        # A user of an ACL file with a real hash.
        assert not re.search(r"^user \w+ .*#[0-9a-f]{64}", text, re.MULTILINE), name


def test_every_test_states_its_property() -> None:
    """Each test has a docstring with a whole sentence: what it proves."""
    found = []
    for name, text in texts().items():
        if not re.fullmatch(r"tests/.*test_\w+\.py", name):
            continue
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.FunctionDef) or not node.name.startswith("test_"):
                continue
            if not re.search(r"\.(\s|$)", ast.get_docstring(node) or ""):
                found.append(f"{name}: {node.name}")
    assert found == []


def test_ci_runs_the_command_of_the_readme() -> None:
    """What CI runs last is what the README tells a reader to type."""
    last = (ROOT / ".ci" / "run").read_text().splitlines()[-1]
    assert last == "make test"
    assert "make test\n" in (ROOT / "README.md").read_text()


def project() -> dict[str, Any]:
    return dict(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"])


def pins() -> dict[str, Version]:
    found = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            name, _, version = line.partition("==")
            found[canonical(name)] = Version(version)
    return found


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_constraints_pin_every_dependency_within_its_range() -> None:
    """Each direct dependency has one tested version, and pyproject.toml allows it: C110."""
    metadata = project()
    groups = [metadata["dependencies"], *metadata["optional-dependencies"].values()]
    wanted = [Requirement(text) for group in groups for text in group]
    tested = pins()
    for requirement in wanted:
        if requirement.name == metadata["name"]:
            continue
        version = tested[canonical(requirement.name)]
        assert version in requirement.specifier, requirement
        # Any build of it will do, such as torch for CPUs.
        assert version.local is None, requirement
    assert canonical(metadata["name"]) not in tested


def test_dev_extra_holds_all_others() -> None:
    """Installing the extra `dev` brings everything that any test needs; `make fuzz` its own."""
    metadata = project()
    extras = metadata["optional-dependencies"]
    inside = [
        Requirement(text).extras
        for text in extras["dev"]
        if Requirement(text).name == metadata["name"]
    ]
    assert inside == [extras.keys() - {"dev", "fuzz"}]


def test_changelog_knows_the_version() -> None:
    """The version of pyproject.toml is the package's, and the changelog has unreleased changes."""
    package = (ROOT / "src" / "redis_state_sync" / "__init__.py").read_text()
    assert f'__version__ = "{project()["version"]}"' in package
    assert "## [Unreleased]" in (ROOT / "CHANGELOG.md").read_text()
