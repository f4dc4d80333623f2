"""Writes what is made from the code into the pages below docs/.

python -m tools.docs            # or `make docs`
python -m tools.docs --check    # changes nothing; ends with 1 if a page is out of date
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from tools.docs import api, cli, settings
from tools.docs.markers import replaced

DOCS = Path(__file__).resolve().parents[2] / "docs"
# Page -> (part, what makes it).
PARTS: dict[str, tuple[str, Callable[[], str]]] = {
    "configuration.md": ("settings", settings.table),
    "cli.md": ("commands", cli.reference),
    "api.md": ("public names", api.listing),
}


def made(page: str) -> str:
    """A page as it should be, from what it is now."""
    part, make = PARTS[page]
    return replaced((DOCS / page).read_text(), part, make())


def main() -> int:
    """The exit status: 1 if `--check` found a page that is out of date."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="change nothing, only compare")
    check = parser.parse_args().check
    changed = [page for page in PARTS if made(page) != (DOCS / page).read_text()]
    for page in changed:
        print(f"docs/{page} {'is out of date: run `make docs`' if check else 'written'}")
        if not check:
            (DOCS / page).write_text(made(page))
    return int(bool(changed) and check)


if __name__ == "__main__":
    sys.exit(main())
