"""msgpack of unknown origin: unpacked only after a look at whether it can be what it claims."""

from __future__ import annotations

from typing import Any

import msgpack

from redis_state_sync.errors import DecodeError


def unpack(data: Any, what: str) -> Any:
    """Unpacks exactly one msgpack value.

    The unpacker allocates an array as long as its header says before it reads the items, and
    nested headers multiply that: a megabyte could ask for gigabytes. Skipping allocates nothing
    and fails unless every announced item is really there.

    Args:
        data: The bytes.
        what: What to call them in the message.

    Raises:
        DecodeError: If they are not msgpack, or more or less than one value.
    """
    scan = msgpack.Unpacker(max_buffer_size=max(1, len(data)))
    try:
        scan.feed(data)
        scan.skip()
        if scan.tell() != len(data):
            raise DecodeError(f"{what} is followed by something else")
        return msgpack.unpackb(data, raw=False, strict_map_key=True)
    except DecodeError:
        raise
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise DecodeError(f"{what} is not msgpack: {type(error).__name__}") from error
