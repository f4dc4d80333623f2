"""docs/troubleshooting.md quotes what the code really says."""

from __future__ import annotations

import ast
import functools
import re

from tests.docs.pages import ROOT, anchors, blocks, fail_if, spans

PAGE = "docs/troubleshooting.md"
# What servers and Linux say, not we.
FOREIGN = {"Bus error"}
COMMAND = re.compile(r"(redis-state-sync|python|make|pip|df|openssl) ")


@functools.cache
def said() -> str:
    """All texts in the code: literals that go on in the next line are one, `{...}` cuts them."""
    texts = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
            elif isinstance(node, ast.JoinedStr):
                parts = [v.value if isinstance(v, ast.Constant) else "\0" for v in node.values]
                texts.append("".join(map(str, parts)))
    return "\n".join(texts)


def quoted() -> list[tuple[str, str]]:
    """Where, and which phrase: code spans of several words that are no command and no code."""
    found = []
    for span in spans(PAGE):
        phrase = span.text.removesuffix(" 'x' at redis://..., and Ray pushes states itself")
        is_code = re.search(r"[(=\[]", phrase) or COMMAND.match(phrase)
        if " " in phrase and not is_code and phrase not in FOREIGN:
            found.append((str(span), phrase))
    return found


def test_quoted_words_are_said() -> None:
    """Each message that the page quotes is in the code."""
    assert len(quoted()) > 30
    fail_if(
        [f"{where}: nobody says {phrase!r}" for where, phrase in quoted() if phrase not in said()]
    )


def test_every_symptom_is_in_a_section_with_a_remedy() -> None:
    """Each section says how to look or what is seen, and what to do."""
    text = (ROOT / PAGE).read_text()
    sections = re.split(r"^## ", text, flags=re.M)[1:]
    assert len(sections) == len(anchors(PAGE)) - 1
    for section in sections:
        title = section.partition("\n")[0]
        assert re.search(r"\*\*Remedy|remedy|Look|^- ", section, re.M), title


def test_the_first_looks_are_commands() -> None:
    """The page begins with commands that can be typed."""
    (block,) = blocks(PAGE)
    assert block.language == "bash"
    assert block.text.count("redis-state-sync ") == 3
