"""Reads replies from a byte stream: large values straight into the caller's buffers.

https://redis.io/docs/latest/develop/reference/protocol-spec/ , RESP2 and RESP3. No element takes
memory before it is there, whatever is announced; a value, at most what is allowed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from redis_state_sync.bare_socket import ByteStream
from redis_state_sync.frames import MAX_ELEMENTS, MAX_LINE_BYTES, ReplyTooLargeError

# Ours are three levels deep.
MAX_DEPTH = 8
_MOST_DIGITS = 20  # Of a 64-bit number.
_BUFFER_BYTES = MAX_LINE_BYTES + 2
_PUSH = ord(">")
# How much of a large value comes between two words of progress.
_STEP_BYTES = 1 << 20
_SPECIAL = {b"_": None, b"#t": True, b"#f": False}


class MalformedReplyError(Exception):
    """What a server sends is no RESP."""


class RespReader:
    """Takes replies out of a stream. Error replies are returned, not raised.

    Args:
        stream: Where they come from.
        make_error: Makes the exception for an error reply, from its text.
    """

    def __init__(self, stream: ByteStream, make_error: Callable[[str], Exception]) -> None:
        self._stream = stream
        self._make_error = make_error
        self.pushes = 0
        """How many messages came that are no replies: of what was tracked, something changed."""
        self._data = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._data)
        self._start = self._end = 0  # What came and was not read yet.
        self._allowance = 0
        self._progress: Callable[[], None] | None = None

    def begin(self, allowance: int, progress: Callable[[], None] | None = None) -> None:
        """Begins an exchange.

        Args:
            allowance: Most bytes that may come.
            progress: Called now and then while a large value comes.
        """
        self._allowance = allowance
        self._progress = progress

    def read(self, into: memoryview | None = None) -> Any:
        """Waits for a reply.

        Args:
            into: Where a value of just this length is to go. It is returned then.

        Returns:
            bytes, int, float, bool, None, an exception for an error reply, a list or a dict of
            them, or `into`.

        Raises:
            ReplyTooLargeError: If it is, or announces, more than allowed.
            MalformedReplyError: If it is no RESP.
            TimeoutError: If it does not come in time.
            OSError: If the connection is lost.
        """
        while (line := self._line()).startswith(b">"):
            self._push(line)
        return self._reply(line, into, 0)

    def is_quiet(self) -> bool:
        """Whether nothing is there to be read, for all that can be told at once."""
        return self._start == self._end and self._stream.is_quiet()

    def read_pushes(self) -> bool:
        """Takes the messages that came already, without waiting for more than their ends.

        Returns:
            Whether something else is there, too.

        Raises:
            As `read`.
        """
        while self._start < self._end or self._more():
            if self._data[self._start] != _PUSH:
                return True
            self._push(self._line())
        return False

    def _more(self) -> int:
        self._check_allowance()
        self._start = 0
        self._end = self._stream.receive_now(self._view)
        self._allowance -= self._end
        return self._end

    def _push(self, line: bytes) -> None:
        self._several(self._count(line) or 0, 0)
        self.pushes += 1

    def _reply(self, line: bytes, into: memoryview | None, depth: int) -> Any:
        kind = line[:1]
        try:
            if kind == b"*" or kind == b"~":
                count = self._count(line)
                return None if count is None else self._several(count, depth)
            if kind == b"$":
                count = self._count(line)
                return None if count is None else self._value(count, into)
            if kind == b":":
                return int(line[1:])
            if kind == b"+":
                return line[1:]
            if kind == b"-":
                return self._make_error(line[1:].decode("utf-8", "replace"))
            return self._resp3(kind, line, into, depth)
        except (ValueError, TypeError) as error:  # A number that is none; a list as a key.
            raise _malformed(line) from error

    def _resp3(self, kind: bytes, line: bytes, into: memoryview | None, depth: int) -> Any:
        if line in _SPECIAL:
            return _SPECIAL[line]
        if kind == b"%":
            return self._pairs(line, depth)
        if kind == b"|":  # Attributes of the reply that follows.
            self._pairs(line, depth)
            return self._reply(self._line(), into, depth + 1)
        if kind == b",":
            return float(line[1:])
        if kind == b"(":
            return int(line[1:])
        if kind == b"!" or kind == b"=":
            count = self._count(line)
            text = bytes(self._value(count or 0, None))
            return text[4:] if kind == b"=" else self._make_error(text.decode("utf-8", "replace"))
        raise _malformed(line)

    def _several(self, count: int, depth: int) -> list[Any]:
        if depth >= MAX_DEPTH:
            raise MalformedReplyError("it is nested too deeply")
        return [self._reply(self._line(), None, depth + 1) for _ in range(count)]

    def _pairs(self, line: bytes, depth: int) -> dict[Any, Any]:
        flat = self._several(2 * (self._count(line) or 0), depth)
        return dict(zip(flat[::2], flat[1::2], strict=True))

    def _count(self, line: bytes) -> int | None:
        """How many bytes or elements are announced; None for a null."""
        number = line[1:]
        if number == b"-1":
            return None
        if not number.isdigit() or len(number) > _MOST_DIGITS:
            raise _malformed(line)
        count = int(number)
        if line[:1] in b"$!=":
            left = self._allowance + self._end - self._start
            if count > left:
                raise ReplyTooLargeError(
                    f"it announces a value of {count} bytes where at most {max(0, left)} can be"
                )
        elif count > MAX_ELEMENTS:
            raise ReplyTooLargeError(f"it announces {count} elements; the limit is {MAX_ELEMENTS}")
        return count

    def _line(self) -> bytes:
        searched = self._start
        while (end := self._data.find(b"\r\n", searched, self._end)) < 0:
            self._compact()
            if self._end == _BUFFER_BYTES:
                raise ReplyTooLargeError(f"it sends a line of more than {MAX_LINE_BYTES} bytes")
            searched = max(0, self._end - 1)
            self._end += self._receive(self._view[self._end :])
        line = bytes(self._view[self._start : end])
        self._start = end + 2
        return line

    def _value(self, size: int, into: memoryview | None) -> Any:
        value = memoryview(bytearray(size)) if into is None or len(into) != size else into
        there = min(size, self._end - self._start)
        value[:there] = self._view[self._start : self._start + there]
        self._start += there
        if there < size:
            self._allowance -= size - there
            self._fill(value[there:])
        if self._line():
            raise MalformedReplyError("a value is longer than announced")
        return value if value is into else bytes(value)

    def _fill(self, view: memoryview) -> None:
        if self._progress is None:
            self._stream.fill(view)
            return
        for start in range(0, len(view), _STEP_BYTES):
            self._stream.fill(view[start : start + _STEP_BYTES])
            self._progress()

    def _receive(self, view: memoryview) -> int:
        self._check_allowance()
        count = self._stream.receive(view)
        self._allowance -= count
        return count

    def _check_allowance(self) -> None:
        # Before more is read: what came says better what is wrong with it, if anything is.
        if self._allowance < 0:
            raise ReplyTooLargeError("it sends more than what was asked for can be")

    def _compact(self) -> None:
        left = self._end - self._start
        self._data[:left] = self._data[self._start : self._end]
        self._start, self._end = 0, left


def _malformed(line: bytes) -> MalformedReplyError:
    return MalformedReplyError(f"a reply begins with {line[:40]!r}")
