"""Every command of every page exists: in blocks of shell code, in text, and in docstrings."""

from __future__ import annotations

import ast
import re
import subprocess

import pytest

from tests.docs.commands import commands_in, problem_of
from tests.docs.pages import PAGES, ROOT, Block, Found, blocks, fail_if, spans

SHELL = ("bash", "sh", "shell", "console")
BLOCKS = [block for page in PAGES for block in blocks(page, *SHELL)]
# Of other languages we know no check: what is shown is shown as text.
LANGUAGES = {
    *SHELL,
    "python",
    "mermaid",
    "yaml",
    "json",
    "ini",
    "toml",
    "promql",
    "diff",
    "text",
    "",
}


def script_of(block: Block) -> str:
    """What is typed: of a console, the lines with a prompt, the others left empty."""
    if block.language != "console":
        return block.text
    typed = [re.match(r"(?:\$|>) (.*)", line) for line in block.text.splitlines()]
    return "\n".join(match[1] if match else "" for match in typed)


@pytest.mark.parametrize("page", PAGES)
def test_languages(page: str) -> None:
    """Each block is of a language that a check knows; what is not shown as code has none."""
    unknown = [f"{b}: {b.language}" for b in blocks(page) if b.language not in LANGUAGES]
    fail_if(unknown)


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_shell_block(block: Block) -> None:
    """A block of shell code is bash, and each of its commands, options, targets and paths is."""
    script = script_of(block)
    # A placeholder in angle brackets would be read as a redirection.
    done = subprocess.run(
        ["bash", "-n"], input=re.sub(r"<([\w-]+)>", r"\1", script), capture_output=True, text=True
    )
    assert done.returncode == 0, f"{block}: {done.stderr}"
    wrong = [
        f"{block.page}:{block.line + 1 + line}: {' '.join(words)}: {problem}"
        for line, words in commands_in(script)
        if (problem := problem_of(words, page=block.page))
    ]
    fail_if(wrong)


def inline_commands(page: str) -> list[Found]:
    """Commands between backticks. Of `[OPTIONAL]` words and `...` only the words remain."""
    begin = re.compile(r"(?:make|redis-state-sync|python -m|python examples/\S+|pip install) \S")
    return [span for span in spans(page) if begin.match(span.text)]


@pytest.mark.parametrize("page", PAGES)
def test_commands_in_text(page: str) -> None:
    """A command that is named in text exists, with its options."""
    wrong = []
    for span in inline_commands(page):
        text = span.text
        if not text.startswith("pip"):
            text = re.sub(r"\[([\w-]+)\]", lambda m: "" if m[1] == "OPTIONS" else m[1], text)
        for _, words in commands_in(text.replace("...", "")):
            problem = problem_of(words, whole=False, page=page)
            if problem:
                wrong.append(f"{span}: `{span.text}`: {problem}")
    fail_if(wrong)


def test_commands_in_docstrings() -> None:
    """What the docstrings of examples, tools and benchmarks tell to type can be typed."""
    wrong, count = [], 0
    for folder in ("examples", "tools", "benchmarks", "src"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
            name = str(path.relative_to(ROOT))
            for line in re.findall(
                r"^ {4,}((?:python|make|redis-state-sync) .*)$", docstring, re.M
            ):
                for _, words in commands_in(line):
                    count += 1
                    problem = problem_of(words)
                    if problem:
                        wrong.append(f"{name}: {line}: {problem}")
    fail_if(wrong)
    assert count > 5
