"""How to compare trees, bit for bit, and how to make them."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp


def identical(a: Any, b: Any) -> bool:
    """Whether two trees are the same in type, shape, dtype and every bit."""
    if isinstance(a, Mapping):
        return (
            isinstance(b, dict)
            and [(type(k), k) for k in a] == [(type(k), k) for k in b]
            and all(identical(a[k], b[k]) for k in a)
        )
    if type(a) is not type(b):
        return False
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(identical(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, (np.ndarray, np.generic)):
        if a.dtype != b.dtype or a.shape != b.shape:
            return False
        if a.dtype.names:  # What lies between the columns is nobody's.
            return all(identical(a[name], b[name]) for name in a.dtype.names)
        return a.tobytes() == b.tobytes()
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b)
    return bool(a == b)


def _structured(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    column = inner | st.tuples(inner, hnp.array_shapes(max_dims=2, max_side=3)).map(np.dtype)
    return st.builds(
        lambda columns, align: np.dtype(list(columns.items()), align=align),
        st.dictionaries(st.text("abcä/ ", min_size=1, max_size=3), column, min_size=1, max_size=3),
        st.booleans(),
    )


# Not hypothesis' own structured dtypes: they hold titles, which have no way back.
_scalar_dtypes = hnp.scalar_dtypes().filter(lambda dtype: dtype.itemsize > 0)
dtypes = _scalar_dtypes | st.recursive(_scalar_dtypes, _structured, max_leaves=4)

arrays = dtypes.flatmap(
    lambda dtype: hnp.arrays(
        dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
    )
)
keys = st.none() | st.text(max_size=6) | st.integers()
scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text() | st.binary()
)
trees = st.recursive(
    scalars | arrays,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(keys, inner, max_size=3)
    ),
    max_leaves=12,
)
