"""numpy dtypes as plain data, and back with every field checked."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from redis_state_sync.errors import DecodeError, EncodeError

# Plain kinds only: bool, ints, floats, complex, datetimes, bytes, str, raw void. Never objects.
# numpy ends the process with a division by zero when it casts to times in steps of 0 seconds.
_TIME = r"[Mm]8(?:\[(?:[1-9][0-9]{0,5})?[A-Za-z]{1,7}\])?"
_PLAIN = re.compile(rf"[<>|](?:[biufcSUV][0-9]{{1,9}}|{_TIME})\Z")
MAX_FIELDS = 1024
MAX_FIELD_NAME = 256
MAX_NESTING = 8
MAX_DIMENSIONS = 32


def describe_dtype(dtype: np.dtype[Any]) -> Any:
    """Returns a str, or nested lists for a structured dtype.

    Raises:
        EncodeError: If the dtype holds Python objects, has no size, or can not be restored.
    """
    if dtype.kind == "T":
        raise EncodeError(
            "arrays of StringDType can not be published: give them a length, as in .astype('U64')"
        )
    if dtype.hasobject:
        raise EncodeError("arrays of Python objects can not be published")
    if dtype.itemsize == 0:
        raise EncodeError("arrays whose items have no size can not be published")
    described = _describe(dtype)
    try:
        restored = restore_dtype(described)
    except DecodeError as error:
        raise EncodeError(f"dtype {dtype} can not be published: {error}") from error
    if restored != dtype:
        raise EncodeError(f"dtype {dtype} can not be published without loss")
    return described


def _describe(dtype: np.dtype[Any]) -> Any:
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return [_describe(base), list(shape)]
    if dtype.fields is None:
        return dtype.str
    fields = [(name, dtype.fields[name]) for name in dtype.names or ()]
    columns = [[name, _describe(field[0]), field[1]] for name, field in fields]
    return {"columns": columns, "itemsize": dtype.itemsize, "aligned": bool(dtype.isalignedstruct)}


def restore_dtype(described: Any) -> np.dtype[Any]:
    """The inverse of `describe_dtype`, for data of unknown origin.

    Raises:
        DecodeError: If it is not a plain dtype.
    """
    if type(described) is str and described in _USUAL:
        return _USUAL[described]
    return _Restorer().restore(described, 0)


_USUAL = {np.dtype(name).str: np.dtype(name) for name in ("f4", "f8", "i4", "i8", "u1", "b1")}


class _Restorer:
    """Restores one dtype, with at most `MAX_FIELDS` fields in all."""

    def __init__(self) -> None:
        self._fields = 0

    def restore(self, described: Any, depth: int) -> np.dtype[Any]:
        if depth > MAX_NESTING:
            raise DecodeError("dtype is nested too deeply")
        try:
            if isinstance(described, str):
                if not _PLAIN.match(described):
                    raise DecodeError(f"not a plain dtype: {described[:40]!r}")
                dtype = np.dtype(described)
            elif isinstance(described, list):
                base, shape = described
                dtype = np.dtype((self.restore(base, depth + 1), checked_shape(shape)))
            elif isinstance(described, dict):
                dtype = self._structured(described, depth)
            else:
                raise DecodeError("dtype is neither a name nor a structure")
        except (TypeError, ValueError, KeyError, OverflowError) as error:
            if isinstance(error, DecodeError):
                raise
            # numpy's text may quote all of what it got.
            raise DecodeError(f"not a dtype: {str(error)[:200]}") from error
        if dtype.hasobject or dtype.itemsize == 0:
            raise DecodeError("dtype holds objects, or has no size")
        return dtype

    def _structured(self, described: dict[Any, Any], depth: int) -> np.dtype[Any]:
        columns = described["columns"]
        if not isinstance(columns, list) or not columns:
            raise DecodeError("structured dtype has no columns")
        self._fields += len(columns)
        if self._fields > MAX_FIELDS:
            raise DecodeError(f"structured dtype has more than {MAX_FIELDS} fields")
        names, formats, offsets = zip(*columns, strict=True)
        if not all(type(n) is str and len(n) <= MAX_FIELD_NAME for n in names):
            raise DecodeError("structured dtype has ill-formed names")
        if not all(type(offset) is int for offset in offsets):
            raise DecodeError("structured dtype has ill-formed offsets")
        return np.dtype(
            {
                "names": list(names),
                "formats": [self.restore(f, depth + 1) for f in formats],
                "offsets": list(offsets),
                "itemsize": described["itemsize"],
            },
            align=bool(described["aligned"]),
        )


def checked_shape(shape: Any) -> tuple[int, ...]:
    """Returns a shape as a tuple.

    Raises:
        DecodeError: If it is not a list of at most 32 non-negative ints below 2**48.
    """
    if not isinstance(shape, list) or len(shape) > MAX_DIMENSIONS:
        raise DecodeError("shape is not a list of at most 32 lengths")
    if not all(type(n) is int and 0 <= n < 1 << 48 for n in shape):
        raise DecodeError("shape holds something that is not a length")
    return tuple(shape)
