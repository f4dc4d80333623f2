"""Reads compose files as Compose does, and maps what is in a container to what is here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tests.deploy.server import DEPLOY

FOLDER = DEPLOY / "compose"
# What is given to `docker compose` by -f, one after the other.
PROJECTS = {
    "single": ["compose.yaml"],
    "tls": ["compose.yaml", "compose.tls.yaml"],
    "sentinel": ["compose.sentinel.yaml"],
    "monitoring": ["compose.yaml", "compose.monitoring.yaml"],
}
REPLACED = {"command", "entrypoint", "test"}


def merged(under: Any, over: Any, name: str = "") -> Any:
    """One file on top of another: https://github.com/compose-spec/compose-spec, 13-merge.md."""
    if name in REPLACED:
        return over
    if isinstance(under, dict) and isinstance(over, dict):
        both = {key: merged(under[key], over[key], key) for key in under.keys() & over.keys()}
        return {**under, **over, **both}
    if isinstance(under, list) and isinstance(over, list):
        if name == "volumes":
            targets = {volume.split(":")[1] for volume in over}
            under = [volume for volume in under if volume.split(":")[1] not in targets]
        return [*under, *(item for item in over if item not in under)]
    return over


def project(name: str) -> dict[str, Any]:
    """All files of a project, merged; without what only holds anchors."""
    result: dict[str, Any] = {}
    for file in PROJECTS[name]:
        result = merged(result, yaml.safe_load((FOLDER / file).read_text()))
    return {key: value for key, value in result.items() if not key.startswith("x-")}


def mounts(service: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Source, target, and mode of each volume."""
    parts = [(*volume.split(":"), "rw")[:3] for volume in service.get("volumes", [])]
    return [(source, target, mode) for source, target, mode in parts]


def in_container(
    document: dict[str, Any], service: dict[str, Any], folder: Path
) -> list[tuple[str, str]]:
    """Pairs of a path in the container and the one here, where the compose files are in `folder`.

    Volumes become folders below it.
    """
    found = []
    for source, target, _ in mounts(service):
        named = source in document.get("volumes", {})
        found.append((target, str(folder / f"volume-{source}" if named else folder / source)))
    for mount in service.get("tmpfs", []):
        target = mount.split(":")[0]
        found.append((target, str(folder / f"tmpfs-{target.strip('/').replace('/', '-')}")))
    for name in service.get("secrets", []):
        found.append((f"/run/secrets/{name}", str(folder / document["secrets"][name]["file"])))
    found.append(("/run/secrets", str(folder / "secrets")))
    return sorted(found, key=lambda pair: -len(pair[0]))


def here(text: str, paths: list[tuple[str, str]]) -> str:
    """A word of a command with its path, if it begins with one of these, replaced."""
    for inside, outside in paths:
        if text == inside or text.startswith(f"{inside}/"):
            return outside + text[len(inside) :]
    return text
