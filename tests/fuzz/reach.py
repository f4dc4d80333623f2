"""Which lines the inputs of a corpus reach."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.fuzz.targets import Target


def lines_missed(target: Target, corpus: Path) -> tuple[int, list[str]]:
    """Runs a target's inputs once more.

    Returns:
        How many lines there are in those functions of the target's modules that were entered, and
        which of them no input reached, as ``file:line``.
    """
    modules = [sys.modules[f"redis_state_sync.{name}"] for name in target.modules]
    files = {str(module.__file__) for module in modules}
    entered: set[CodeType] = set()
    seen: set[tuple[str, int]] = set()

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename not in files:
            return None
        entered.add(frame.f_code)
        seen.add((frame.f_code.co_filename, frame.f_lineno))
        return trace

    sys.settrace(trace)
    threading.settrace(trace)
    try:
        for path in sorted(corpus.iterdir()):
            target.run(path.read_bytes())
    finally:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
    there = {
        (code.co_filename, line)
        for code in entered
        for _, _, line in code.co_lines()
        if line and line != code.co_firstlineno
    }
    missed = sorted(there - seen)
    return len(there), [f"{Path(file).name}:{line}" for file, line in missed]
