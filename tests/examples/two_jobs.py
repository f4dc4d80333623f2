"""Starts the scripts of examples/two_jobs by the README's commands, and reads what they say."""

from __future__ import annotations

import os
import queue
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType

FOLDER = Path(__file__).parents[2] / "examples" / "two_jobs"
README = (FOLDER / "README.md").read_text()


class Job:
    """One script, running.

    Args:
        command: A command of the README.
        more: Arguments that only a test needs.
        env: Variables to set.
    """

    def __init__(self, command: str, *more: str, env: dict[str, str]) -> None:
        assert command in README.splitlines(), f"the README has no {command!r}"
        program, *arguments = shlex.split(command)
        assert program == "python"
        inherited = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}
        self.command = command
        self._process = subprocess.Popen(
            [sys.executable, *arguments, *more],
            cwd=FOLDER,
            env={**inherited, "RAY_USAGE_STATS_ENABLED": "0", **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._lines: queue.Queue[str] = queue.Queue()
        self._seen: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)

    def says(self, pattern: str, *, within: float = 120.0) -> re.Match[str]:
        """The next line that has the pattern; what is said before it is passed over."""
        deadline = time.monotonic() + within
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, min(1.0, deadline - time.monotonic())))
            except queue.Empty:
                if self._process.poll() is not None and self._lines.empty():
                    raise AssertionError(self._story(f"ended without {pattern!r}")) from None
                if time.monotonic() >= deadline:
                    raise AssertionError(self._story(f"did not say {pattern!r}")) from None
                continue
            self._seen.append(line)
            found = re.search(pattern, line)
            if found:
                return found

    def skip(self) -> None:
        """What was said up to now counts no more."""
        while not self._lines.empty():
            self._seen.append(self._lines.get())

    def kill(self) -> None:
        """SIGKILL, to the driver alone."""
        self._process.kill()
        self._process.wait(30)

    def interrupt(self) -> int:
        """Ctrl-C, and the exit status."""
        self._process.send_signal(signal.SIGINT)
        return self.ends()

    def ends(self) -> int:
        """Its exit status."""
        try:
            return self._process.wait(60)
        except subprocess.TimeoutExpired:
            raise AssertionError(self._story("did not end")) from None

    def _story(self, what: str) -> str:
        self.skip()
        return f"{self.command} {what}. It said:\n{''.join(self._seen[-60:])}"

    def __enter__(self) -> Job:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process.poll() is None:
            self.kill()
        self._reader.join(10)
        if not self._reader.is_alive():  # Else something of Ray's holds the other end.
            assert self._process.stdout is not None
            self._process.stdout.close()
