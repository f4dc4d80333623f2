"""What is wrong with a Mermaid diagram: a light check of the forms that our pages use.

Mermaid itself is a large JavaScript program. This knows flowcharts and sequence diagrams, line by
line, and refuses whatever it does not know.
"""

from __future__ import annotations

import re

# In quotes, or a few plain words: Mermaid takes much else for syntax.
_TEXT = r'(?:"[^"<>]*(?:<br/>[^"<>]*)*"|\w[\w ,.:/-]*)'
_ID = r"[A-Za-z]\w*"
_SHAPE = rf"(?:\[{_TEXT}\]|\[\({_TEXT}\)\]|\{{{_TEXT}\}})"
_NODE = rf"({_ID})({_SHAPE})?"
_LINK = rf"(?:-->|-- {_TEXT} -->|-->\|{_TEXT}\||-\. {_TEXT} \.->|-\.->|<-->|---)"
_EDGE = re.compile(rf"{_NODE} {_LINK} {_NODE}")
_ALONE = re.compile(_NODE)
_SUBGRAPH = re.compile(rf"subgraph {_ID}\[{_TEXT}\]")
_PARTICIPANT = re.compile(rf"(?:participant|actor) ({_ID}) as \S.*")
_MESSAGE = re.compile(rf"({_ID})(?:->>|-->>)({_ID}): \S[^;#]*")
_NOTE = re.compile(rf"Note over ({_ID})(?:,({_ID}))?: \S[^;#]*")
_BEGIN = re.compile(r"(alt|loop|opt|par) \S[^;#]*")


def problems(diagram: str) -> list[tuple[int, str]]:
    """Line, counted from 0, and what is wrong with it."""
    lines = diagram.splitlines()
    kind = lines[0].strip() if lines else ""
    if re.fullmatch(r"(flowchart|graph) (LR|RL|TD|TB)", kind):
        return _flowchart(lines)
    if kind == "sequenceDiagram":
        return _sequence(lines)
    return [(0, f"unknown kind of diagram: {kind!r}")]


def _flowchart(lines: list[str]) -> list[tuple[int, str]]:
    wrong, open_, named, used = [], 0, set(), {}
    for number, line in enumerate(lines[1:], 1):
        text = line.strip()
        if text == "end":
            open_ -= 1
            if open_ < 0:
                wrong.append((number, "an end of nothing"))
        elif _SUBGRAPH.fullmatch(text):
            open_ += 1
        elif match := _EDGE.fullmatch(text) or _ALONE.fullmatch(text):
            groups = match.groups()
            for name, shape in zip(groups[::2], groups[1::2], strict=True):
                used.setdefault(name, number)
                if shape:
                    named.add(name)
        elif text:
            wrong.append((number, f"unknown: {text}"))
    wrong += [(number, f"{name} has no text") for name, number in used.items() if name not in named]
    return wrong + [(len(lines) - 1, "a subgraph does not end")] * (open_ > 0)


def _sequence(lines: list[str]) -> list[tuple[int, str]]:
    wrong, open_, declared = [], [], set()
    for number, line in enumerate(lines[1:], 1):
        text = line.strip()
        if match := _PARTICIPANT.fullmatch(text):
            declared.add(match[1])
        elif match := _MESSAGE.fullmatch(text) or _NOTE.fullmatch(text):
            unknown = {name for name in match.groups() if name} - declared
            wrong += [(number, f"{name} is no participant") for name in sorted(unknown)]
        elif match := _BEGIN.fullmatch(text):
            open_.append(match[1])
        elif re.fullmatch(r"else( \S.*)?", text):
            if open_[-1:] != ["alt"]:
                wrong.append((number, "else outside of alt"))
        elif text == "end":
            if not open_:
                wrong.append((number, "an end of nothing"))
            open_ = open_[:-1]
        elif text:
            wrong.append((number, f"unknown: {text}"))
    return wrong + [(len(lines) - 1, f"{kind} does not end") for kind in open_]
