"""Every link of every page leads somewhere, and every page can be reached."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.docs.pages import PAGES, ROOT, anchors, fail_if, links, name_of, tracked

# Hosts that pages may link to. Nothing is fetched: look at a new link once, then add its host.
HOSTS = {
    "docs.ray.io",
    "github.com",
    "keepachangelog.com",
    "semver.org",
    "valkey.io",
    "www.rfc-editor.org",
}
EXTERNAL = re.compile(r"[a-z][a-z0-9+.-]*:", re.I)


def resolved(page: str, target: str) -> tuple[Path, str]:
    """The file that a relative link of a page leads to, and its anchor."""
    path, _, anchor = target.partition("#")
    here = ROOT / page
    return ((here.parent / unquote(path)).resolve() if path else here), anchor


def problem_of(path: Path, anchor: str) -> str | None:
    """Why a link to this file and anchor is wrong."""
    if not path.exists():
        return "there is no such file"
    if not path.is_relative_to(ROOT):
        return "it leaves the repository"
    if anchor and path.suffix == ".md" and anchor not in anchors(name_of(path)):
        return f"{name_of(path)} has no such heading"
    return None


@pytest.mark.parametrize("page", PAGES)
def test_relative_links(page: str) -> None:
    """Every relative link leads to a file of the repository, and every anchor to a heading."""
    wrong = []
    for link in links(page):
        if not EXTERNAL.match(link.text):
            problem = problem_of(*resolved(page, link.text))
            if problem:
                wrong.append(f"{link}: {link.text}: {problem}")
    fail_if(wrong)


@pytest.mark.parametrize("page", PAGES)
def test_external_links(page: str) -> None:
    """Every other link is https, well-formed, and leads to a host that was looked at."""
    wrong = []
    for link in links(page):
        if EXTERNAL.match(link.text):
            parts = urlsplit(link.text)
            if parts.scheme != "https" or parts.hostname not in HOSTS or " " in link.text:
                wrong.append(f"{link}: {link.text}: not https, or not a host of test_links.HOSTS")
    fail_if(wrong)


def test_pages_that_code_names() -> None:
    """A page that a docstring, message, comment, configuration or script names exists."""
    wrong = []
    for name in tracked():
        if name.endswith((".md", ".png", ".svg", ".json")) or not (ROOT / name).is_file():
            continue
        for number, line in enumerate((ROOT / name).read_text().splitlines(), 1):
            named = r"(?<![\w/.{}-])((?:docs|deploy|examples)/[\w/.-]+\.md)(?:#([\w-]+))?"
            for path, anchor in re.findall(named, line):
                problem = problem_of(ROOT / path, anchor)
                if problem:
                    wrong.append(f"{name}:{number}: {path}#{anchor}: {problem}")
    fail_if(wrong)


def reached_from(start: str) -> set[str]:
    """The pages that links lead to, from one page on."""
    reached, waiting = {start}, [start]
    while waiting:
        page = waiting.pop()
        for link in links(page):
            if EXTERNAL.match(link.text):
                continue
            path, _ = resolved(page, link.text)
            if path.is_dir() and (path / "README.md").exists():
                path = path / "README.md"
            if path.suffix == ".md" and path.exists() and name_of(path) not in reached:
                reached.add(name_of(path))
                waiting.append(name_of(path))
    return reached


@pytest.mark.parametrize("start", ["README.md", "docs/README.md"])
def test_every_page_is_reachable(start: str) -> None:
    """From README and from the index of docs/, links lead to every page."""
    missing = sorted(set(PAGES) - reached_from(start))
    fail_if([f"{page}:1: no link leads here from {start}" for page in missing])


def test_the_index_names_every_page() -> None:
    """docs/README.md itself links every page of docs/ and every decision record's folder."""
    linked = {resolved("docs/README.md", link.text)[0] for link in links("docs/README.md")}
    pages = [p for p in PAGES if Path(p).parent == Path("docs") and p != "docs/README.md"]
    missing = [page for page in pages if ROOT / page not in linked]
    fail_if([f"{page}:1: docs/README.md has no link to it" for page in missing])
