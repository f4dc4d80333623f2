"""Every Python block of every page runs, or is marked as a fragment, whose names exist.

A comment right before a block says what it is: `<!-- doc-test: fragment -->` is compiled and its
imports are looked up; `file NAME` is a file, which a test of its page runs; `continues` goes on
where the block before it ended. A block without a mark is a program of its own. One that imports
Ray gets a small cluster, and one that names the server of LOCAL gets such a server.
"""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from redis_state_sync.testing import EmbeddedServer
from tests.docs.pages import PAGES, Block, blocks
from tests.docs.servers import LOCAL, local_server

# Pages whose files are run by a test of their own, and README, whose blocks are.
RUN_ELSEWHERE = {"docs/getting-started.md", "docs/testing.md"}
README = "README.md"
MARKS = r"|fragment|continues|file [\w.]+"
SMALL_RAY = (
    "import ray; ray.init(include_dashboard=False, num_cpus=4, object_store_memory=2 * 10**8)"
)

ALL = [block for page in PAGES for block in blocks(page, "python", "py", "pycon")]


def programs() -> list[tuple[Block, str]]:
    """The blocks that are run, each with all of its program."""
    found = []
    for block in ALL:
        if block.page == README:
            continue
        if block.mark == "":
            found.append((block, block.text))
        elif block.mark == "continues":
            before, code = found.pop()
            assert before.page == block.page, f"{block}: there is nothing that it continues"
            found.append((before, code + block.text))
    return found


def uses_ray(code: str) -> bool:
    return bool(re.search(r"^\s*(from|import) ray\b", code, re.M))


def run(block: Block, code: str, folder: Path, server: EmbeddedServer | None) -> None:
    """Runs a program; the test fails with page, line and traceback if it does not succeed."""
    environment = dict(os.environ)
    if server:
        code = code.replace(LOCAL, server.url)
        environment["REDIS_STATE_SYNC_URL"] = server.url
    if uses_ray(code) and "ray.init(" not in code:
        code = f"{SMALL_RAY}\n{code}"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    if done.returncode != 0:
        printed = done.stdout[-1000:] + done.stderr[-3000:]
        pytest.fail(f"{block}: the code below this line failed\n{printed}", pytrace=False)


def parameters(*, ray: bool) -> list[object]:
    return [
        pytest.param(block, code, id=str(block))
        for block, code in programs()
        if uses_ray(code) is ray
    ]


@pytest.mark.parametrize(("block", "code"), parameters(ray=False))
def test_block_runs(block: Block, code: str, tmp_path: Path) -> None:
    """A block without Ray runs to its end."""
    if LOCAL in code:
        with local_server() as server:
            run(block, code, tmp_path, server)
    else:
        run(block, code, tmp_path, None)


@pytest.mark.ray
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("block", "code"), parameters(ray=True))
def test_block_runs_with_ray(block: Block, code: str, tmp_path: Path) -> None:
    """A block that needs Ray runs to its end, on a small cluster."""
    with local_server() as server:
        run(block, code, tmp_path, server)


@pytest.mark.parametrize("block", ALL, ids=str)
def test_block_is_python(block: Block) -> None:
    """Each block has a known mark, can be compiled, and imports only names that exist."""
    assert re.fullmatch(MARKS, block.mark), f"{block}: unknown mark {block.mark!r}"
    if block.mark.startswith("file "):
        assert block.page in RUN_ELSEWHERE, f"{block}: no test runs this file"
    files = {b.mark[5:].removesuffix(".py") for b in ALL if b.mark.startswith("file ")}
    for node in ast.walk(ast.parse(block.text, str(block))):
        if isinstance(node, ast.Import):
            for name in node.names:
                importlib.import_module(name.name)
        elif isinstance(node, ast.ImportFrom) and node.module and node.module not in files:
            module = importlib.import_module(node.module)
            for name in node.names:
                there = hasattr(module, name.name)
                assert there, f"{block}: {node.module} has no {name.name}"
