"""Fixtures for unit tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest


@pytest.fixture
def shared_memory() -> Iterator[Path]:
    """A folder in memory."""
    with TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)
