"""What a reply announces, seen before the parser that would believe it.

https://redis.io/docs/latest/develop/reference/protocol-spec/ : lines that end with CR LF, of which
some announce how many bytes or elements follow. hiredis makes a list as long as announced before
any element is there (16 GB for ten bytes), and reads a value of any length into memory.
"""

from __future__ import annotations

# Far more than any command of ours is answered with: entries, pins, readers.
MAX_ELEMENTS = 1 << 17
# Longer than any error message. A parser looks for the end of a line from its beginning each time.
MAX_LINE_BYTES = 64 << 10

_BULKS = b"$=!"
_AGGREGATES = b"*%~>|"


class ReplyTooLargeError(Exception):
    """A server sends, or announces, more than what was asked for can be."""


class Frames:
    """Follows the bytes of a connection from one announcement to the next.

    Args:
        allowance: How many bytes may come. Set it anew for each exchange.
        max_elements: How many may be announced at once.
    """

    def __init__(self, allowance: int, max_elements: int = MAX_ELEMENTS) -> None:
        self.allowance = allowance
        self._max_elements = max_elements
        self._skip = 0  # Bytes of a value that are still to come, and of the line's end behind it.
        self._line = b""  # The beginning of a line whose end is still to come.

    def saw(self, data: memoryview) -> None:
        """Takes note of the bytes that came next.

        Raises:
            ReplyTooLargeError: If more come, or are announced, than allowed.
        """
        self.allowance -= len(data)
        if self._skip >= len(data):
            self._skip -= len(data)  # Of a large value, nothing is copied.
        else:
            self._read_lines(self._line + bytes(data[self._skip :]))
        if self.allowance < 0:
            raise ReplyTooLargeError("it sends more than what was asked for can be")

    def _read_lines(self, text: bytes) -> None:
        searched, start, self._skip = max(0, len(self._line) - 1), 0, 0
        while (end := text.find(b"\r\n", searched)) >= 0:
            line, start = text[start:end], end + 2
            left = len(text) - start
            size = self._announced(line, left)
            if size > left:
                self._skip, start = size - left, len(text)
                break
            start = searched = start + size
        self._line = text[start:]
        if len(self._line) > MAX_LINE_BYTES:
            raise ReplyTooLargeError(f"it sends a line of more than {MAX_LINE_BYTES} bytes")

    def _announced(self, line: bytes, there: int) -> int:
        """How many bytes behind a line belong to it."""
        number = line[1:]
        if not number.isdigit():
            return 0  # No announcement, or one that the parser refuses.
        count = int(number[:20])
        if line[0] in _AGGREGATES and count > self._max_elements:
            raise ReplyTooLargeError(
                f"it announces {count} elements; the limit is {self._max_elements}"
            )
        if line[0] not in _BULKS:
            return 0
        left = max(0, self.allowance + there)
        if count > left:
            raise ReplyTooLargeError(
                f"it announces a value of {count} bytes where at most {left} can be"
            )
        return count + 2
