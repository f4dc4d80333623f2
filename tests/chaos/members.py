"""The processes under test, seen from outside: what their journals say, as it is written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

from redis_state_sync import Version
from tests.chaos.journal import Line, Tail

ROOT = Path(__file__).resolve().parents[2]

# A long run has hundreds of thousands; they are read from the files in the end.
_IN_ABUNDANCE = {"applied", "stored", "hands", "handed"}


class Member:
    """One process.

    Args:
        name: What it is called; also of its files.
        folder: Where these are.
        module: What it runs.
        options: Of its command line.
    """

    def __init__(self, name: str, folder: Path, module: str, options: dict[str, object]) -> None:
        self.name = name
        self.lines: list[Line] = []
        """Its journal, but for what there is of in abundance."""
        self.failures: Counter[str] = Counter()
        self.expected_end = False
        """Whether it was killed, or told to stop, or may be refused."""
        path = folder / f"{name}.jsonl"
        self.log = folder / f"{name}.log"
        self._tail = Tail(path)
        words: list[str] = []
        for key, value in options.items():
            if value is True:
                words.append(f"--{key}")
            elif value is not None and value is not False:
                words += [f"--{key}", str(value)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, "--name", name, "--journal", str(path), *words],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
            )

    def __repr__(self) -> str:
        return self.name

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it lives."""
        return self._process.poll()

    def look(self) -> list[Line]:
        """Reads on in its journal. Returns what is new."""
        new = list(self._tail.new())
        self.lines += [line for line in new if line["ev"] not in _IN_ABUNDANCE]
        for line in new:
            if line["ev"] == "failed":
                self.failures[line["category"]] += 1
            self._take(line)
        return new

    def _take(self, line: Line) -> None:
        """Another line of the journal."""

    def told(self, event: str) -> Line | None:
        """The first line of this kind."""
        return next((line for line in self.lines if line["ev"] == event), None)

    def order(self, word: str) -> None:
        """Tells it something."""
        assert self._process.stdin is not None
        self._process.stdin.write(word.encode() + b"\n")
        self._process.stdin.flush()

    def signal(self, number: signal.Signals) -> None:
        """Sends it a signal; SIGKILL also waits for its end."""
        if self.exit_code is None:
            os.kill(self._process.pid, number)
        if number == signal.SIGKILL:
            self.expected_end = True
            self._process.wait()

    def end(self, timeout: float = 10.0) -> None:
        """Lets it end by itself, or else kills it."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            try:
                self._process.stdin.close()
            except BrokenPipeError:
                pass  # It is gone.
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Learner(Member):
    """A learner process."""

    def __init__(self, name: str, folder: Path, options: dict[str, object]) -> None:
        super().__init__(name, folder, "tests.chaos.learner", options)
        self.writer = options["writer"]
        self.on_readers_node = False
        """Whether it shares a node's cache with readers."""
        self.stored: list[tuple[float, Version]] = []
        self.quiet = False

    def _take(self, line: Line) -> None:
        if line["ev"] == "stored":
            self.stored.append((line["t"], Version.parse(line["version"])))


class Reader(Member):
    """A reader process."""

    def __init__(self, name: str, place: int, folder: Path, options: dict[str, object]) -> None:
        super().__init__(name, folder, "tests.chaos.reader", options)
        self.place = place
        self.shares = bool(options["shares"])
        self.writer = options.get("writer")
        self.applied: list[tuple[float, Version]] = []

    def _take(self, line: Line) -> None:
        if line["ev"] == "applied":
            self.applied.append((line["t"], Version.parse(line["version"])))
