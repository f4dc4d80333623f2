"""Diagrams of the pages are well-formed."""

from __future__ import annotations

import pytest

from tests.docs.mermaid import problems
from tests.docs.pages import PAGES, blocks, fail_if

GOOD = """sequenceDiagram
    participant A as a learner
    participant B as a server
    alt it is there
        A->>B: ask
        B-->>A: answer
    else
        Note over A,B: nothing
    end
"""


@pytest.mark.parametrize("page", PAGES)
def test_diagrams(page: str) -> None:
    """Each diagram of a page is one that Mermaid draws."""
    fail_if(
        [
            f"{page}:{block.line + 1 + line}: {problem}"
            for block in blocks(page, "mermaid")
            for line, problem in problems(block.text)
        ]
    )


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("A->>B: ask", "A->>C: ask", "C is no participant"),
        ("A->>B: ask", "A->B ask", "unknown"),
        ("A->>B: ask", "A->>B: ask; tell", "unknown"),
        ("    end\n", "", "alt does not end"),
        ("    alt it is there\n", "", "else outside of alt"),
        ("sequenceDiagram", "sequence", "unknown kind"),
    ],
)
def test_what_is_wrong_is_found(old: str, new: str, said: str) -> None:
    """The check finds mistakes in a diagram that was right before."""
    assert problems(GOOD) == []
    assert said in str(problems(GOOD.replace(old, new)))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('A["x"] --> B', "B has no text"),
        ('A["x" --> B["y"]', "unknown"),
        ('subgraph S["x"]', "does not end"),
        ("end", "an end of nothing"),
        ('A["x"] -- y (z) --> B["z"]', "unknown"),
        ("A[x (y)] --> B[z]", "unknown"),
        ('A["x"] -> B["z"]', "unknown"),
    ],
)
def test_what_is_wrong_with_a_flowchart_is_found(line: str, said: str) -> None:
    """The same for flowcharts."""
    assert (
        problems('flowchart LR\n    A["x (y)"] -- "y" --> B[("z")]\n    A -->|no| C[an end]\n')
        == []
    )
    assert said in str(problems(f"flowchart LR\n    {line}\n"))
