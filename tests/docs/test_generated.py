"""What docs/ takes from the code is what `make docs` makes of it."""

from __future__ import annotations

import dataclasses

import pytest

from redis_state_sync import Settings
from tools.docs.__main__ import DOCS, PARTS, made
from tools.docs.markers import replaced
from tools.docs.settings import SECTIONS, meanings


@pytest.mark.parametrize("page", PARTS)
def test_page_is_up_to_date(page: str) -> None:
    """A page is just as `make docs` would write it."""
    assert (DOCS / page).read_text() == made(page), f"docs/{page}: run `make docs`"


def test_every_setting_is_explained() -> None:
    """The docstring of Settings explains each of them, in their order, and nothing else."""
    assert list(meanings()) == [field.name for field in dataclasses.fields(Settings)]
    assert all(meaning.strip() for meaning in meanings().values())
    assert SECTIONS.keys() <= meanings().keys()


def test_only_what_is_between_the_markers_changes() -> None:
    """The generator leaves the rest of a page alone, and refuses one without its markers."""
    page = "before\n<!-- generated: x, by `make docs` -->\nold\n<!-- /generated -->\nafter\n"
    changed = replaced(page, "x", r"new \1")
    assert changed == page.replace("old", "\nnew \\1\n")
    assert replaced(changed, "x", r"new \1") == changed
    with pytest.raises(ValueError, match="0 places"):
        replaced(page, "y", "new")
