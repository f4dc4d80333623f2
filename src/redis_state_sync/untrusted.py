"""msgpack of unknown origin: unpacked only after a look at whether it can be what it claims."""

from __future__ import annotations

from typing import Any, NoReturn

import msgpack

from redis_state_sync.errors import DecodeError

# An item is a number, text, list or dict, keys counted. The dearest for its size, an empty list of
# one byte, takes 64 bytes of memory: so much can one blob's header cost, and no more.
MAX_ITEMS = 1 << 20


def unpack(data: Any, what: str, *, max_items: int = MAX_ITEMS) -> Any:
    """Unpacks exactly one msgpack value.

    The unpacker allocates an array as long as its header says before it reads the items, and
    nested headers multiply that: a megabyte could ask for gigabytes. Skipping allocates nothing
    and fails unless every announced item is really there.

    Args:
        data: The bytes.
        what: What to call them in the message.
        max_items: Most items in it.

    Raises:
        DecodeError: If they are not msgpack, more or less than one value, or too many items.
    """
    scan = msgpack.Unpacker(max_buffer_size=max(1, len(data)))
    try:
        scan.feed(data)
        scan.skip()
        if scan.tell() != len(data):
            raise DecodeError(f"{what} is followed by something else")
        if has_more_items(data, max_items):
            raise DecodeError(f"{what} holds more than {max_items} items")
        return msgpack.unpackb(
            data, raw=False, strict_map_key=True, max_ext_len=0, ext_hook=_refuse_extension
        )
    except DecodeError:
        raise
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise DecodeError(f"{what} is not msgpack: {type(error).__name__}") from error


def _refuse_extension(code: int, data: bytes) -> NoReturn:
    raise DecodeError("msgpack extension types are not used")


def has_more_items(data: Any, most: int) -> bool:
    """Whether well-formed msgpack holds more than `most` items, nested ones counted."""
    if len(data) <= most:
        return False  # None is shorter than a byte. What is honest mostly ends here.
    position, items = 0, 0
    while position < len(data):
        items += 1
        if items > most:
            return True
        size = _SIZES[data[position]]
        if size < 0:
            start, end = position + 1, position + 1 - size
            size = 1 - size + int.from_bytes(data[start:end], "big")
        position += size
    return False


def _sizes() -> list[int]:
    """By first byte: the size of an item without what it contains, or minus that of its length.

    https://github.com/msgpack/msgpack/blob/master/spec.md#formats
    """
    sizes = [1] * 256
    sizes[0xA0:0xC0] = range(1, 33)  # short strings
    for first, width in ((0xC4, -1), (0xD9, -1)):  # bytes and longer strings
        sizes[first : first + 3] = [width, 2 * width, 4 * width]
    sizes[0xCA:0xCC] = [5, 9]  # floats
    sizes[0xCC:0xD0] = sizes[0xD0:0xD4] = [2, 3, 5, 9]  # ints
    sizes[0xDC:0xE0] = [3, 5, 3, 5]  # headers of longer lists and dicts
    return sizes


_SIZES = _sizes()
