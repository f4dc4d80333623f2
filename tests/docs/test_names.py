"""Names between backticks exist: errors, settings, environment variables, results, exit codes."""

from __future__ import annotations

import builtins
import dataclasses
import functools
import importlib
import inspect
import re

import pytest

import redis_state_sync
from redis_state_sync import Settings, errors
from redis_state_sync.cli.exit_codes import ExitCode
from tests.docs.pages import PAGES, ROOT, Found, fail_if, spans, tracked

ENVIRONMENT = re.compile(r"\b(?:REDIS_STATE_SYNC|RSS)_[A-Z_]+\b")
# Of Ray, redis-py and others, where a page tells of them.
FOREIGN_ERRORS = {"RayError"}
FOREIGN_ARGUMENTS = {"runtime_env", "shm_size"}
# Pages about what others do, or once did.
ABOUT_OTHERS = {"docs/cases.md", "CHANGELOG.md"}


@functools.cache
def source() -> str:
    """All code, configuration and scripts that can bring a name into being."""
    folders = ("src", "deploy", "examples", "benchmarks", "tests", "tools")
    suffixes = {".py", ".sh", ".yaml", ".yml", ".conf", ".acl", ".json", ".tmpl"}
    here = ROOT / "tests" / "docs"
    return "\n".join(
        path.read_text()
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in suffixes and here not in path.parents
    )


@functools.cache
def identifiers() -> frozenset[str]:
    return frozenset(re.findall(r"\w+", source()))


@functools.cache
def members() -> dict[str, set[str]]:
    """Public class -> names that can stand behind its dot."""
    classes = {n: getattr(redis_state_sync, n) for n in redis_state_sync.__all__}
    return {
        name: {*dir(value), *vars(value).get("__annotations__", ())}
        for name, value in classes.items()
        if inspect.isclass(value)
    }


def unknown_errors(text: str) -> list[str]:
    named = re.findall(r"\b[A-Z]\w*Error\b", text)
    return [
        name
        for name in named
        if not (hasattr(errors, name) or hasattr(builtins, name) or name in FOREIGN_ERRORS)
    ]


def unknown_members(text: str) -> list[str]:
    classes = members()
    return [
        f"{cls}.{member}"
        for cls, member in re.findall(r"\b([A-Z]\w+)\.(\w+)", text)
        if cls in classes and member not in classes[cls]
    ]


def unknown_modules(text: str) -> list[str]:
    wrong = []
    for dotted in re.findall(r"\bredis_state_sync(?:\.\w+)+", text):
        parts = dotted.split(".")
        value: object = importlib.import_module(parts[0])
        for number, part in enumerate(parts[1:], 2):
            if not hasattr(value, part):
                try:
                    value = importlib.import_module(".".join(parts[:number]))
                except ImportError:
                    wrong.append(dotted)
                    break
            else:
                value = getattr(value, part)
    return wrong


def unknown_results(text: str) -> list[str]:
    """Keys of results and metrics, which end in ways that nothing else does."""
    named = re.findall(r"\b(?:num_\w+|\w+_(?:lifetime|timer)|redis_state_sync_\w+)\b", text)
    # Of a metric, prefix and unit are put there when it is exported: test_monitoring knows all.
    return [n for n in named if not {n, n.removeprefix("redis_state_sync_")} & identifiers()]


def unknown_arguments(text: str) -> list[str]:
    """`name=value` on its own: a setting, or an argument of something here or in RLlib."""
    named = re.fullmatch(r"([a-z]\w*_\w+)=\S.*", text)
    return unknown_words(named[1]) if named else []


@functools.cache
def rllib_settings() -> frozenset[str]:
    return frozenset(vars(importlib.import_module("ray.rllib.algorithms.ppo").PPOConfig()))


def unknown_words(text: str) -> list[str]:
    """A name on its own: of this code, or a setting of RLlib's. With a number it is an example."""
    named = re.fullmatch(r"([a-z]\w*_\w*[a-z])(?:\(\))?", text)
    if not named or re.match(r"lag_(?:updates|seconds)_", text):  # These test_docs knows.
        return []
    name = named[1].removeprefix("redis_state_sync_")
    known = name in identifiers() | FOREIGN_ARGUMENTS or name in rllib_settings()
    return [] if known else [name]


def unknown_variables(text: str) -> list[str]:
    return [name for name in ENVIRONMENT.findall(text) if name not in source()]


CHECKS = [
    unknown_errors,
    unknown_members,
    unknown_modules,
    unknown_results,
    unknown_arguments,
    unknown_words,
    unknown_variables,
]


@pytest.mark.parametrize("page", [p for p in PAGES if p not in ABOUT_OTHERS])
def test_names_exist(page: str) -> None:
    """Each name that a page sets between backticks is one of this code."""
    wrong = [
        f"{span}: `{span.text}`: unknown {name}"
        for span in spans(page)
        for check in CHECKS
        for name in check(span.text)
    ]
    fail_if(wrong)


@pytest.mark.parametrize("page", PAGES)
def test_paths_exist(page: str) -> None:
    """A file that text names is there: from the top on, or from some folder on."""
    files = tracked()
    endings = "py|md|sh|conf|acl|ya?ml|json|tmpl|svg|png"
    looks_like = re.compile(rf"[\w-][\w./-]*/[\w.-]+\.(?:{endings})")
    wrong = [
        f"{span}: there is no {span.text}"
        for span in spans(page)
        if looks_like.fullmatch(span.text)
        and not span.text.startswith("ray/")
        and not any(f"/{file}".endswith(f"/{span.text}") for file in files)
    ]
    fail_if(wrong)


@pytest.mark.parametrize("page", PAGES)
def test_environment_variables_exist(page: str) -> None:
    """Each environment variable that a page names anywhere, also in code, is read or written."""
    lines = (ROOT / page).read_text().splitlines()
    found = [Found(page, number, line) for number, line in enumerate(lines, 1)]
    wrong = [f"{f}: {name}" for f in found for name in unknown_variables(f.text)]
    fail_if(wrong)


def test_seconds_are_more_than_nothing() -> None:
    """As docs/configuration.md says, no setting that ends in `_s` takes 0 or a text."""
    for field in dataclasses.fields(Settings):
        if field.name.endswith("_s"):
            for value in (0, -1, "1"):
                with pytest.raises(errors.SettingsError):
                    Settings(**{field.name: value})


def test_exit_codes() -> None:
    """The table of docs/cli.md has every exit status, and no other."""
    text = (ROOT / "docs/cli.md").read_text().partition("## Exit status")[2].partition("\n## ")[0]
    listed = {int(number) for number in re.findall(r"^\| (\d+) \|", text, re.M)}
    assert listed == {int(code) for code in ExitCode}
