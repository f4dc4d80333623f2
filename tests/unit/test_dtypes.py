"""numpy dtypes as plain data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_state_sync.dtypes import checked_shape, describe_dtype, restore_dtype
from redis_state_sync.errors import DecodeError, EncodeError
from tests.unit.trees import dtypes


@given(dtypes)
def test_round_trip(dtype: np.dtype[Any]) -> None:
    """A dtype is restored equal, byte order, offsets and nesting included: C50."""
    restored = restore_dtype(describe_dtype(dtype))
    assert restored == dtype
    assert (restored.itemsize, restored.isalignedstruct) == (dtype.itemsize, dtype.isalignedstruct)


@pytest.mark.parametrize(
    "dtype",
    [
        np.dtype(object),
        np.dtype([("a", object)]),
        np.dtype("V0"),
        np.dtype([]),
        np.dtype([(("title", "a"), "f4")]),
        np.dtypes.StringDType(),
    ],
    ids=str,
)
def test_refuses_what_would_be_lost(dtype: np.dtype[Any]) -> None:
    """Dtypes with objects, titles or no size are refused when published: C48, C50."""
    with pytest.raises(EncodeError):
        describe_dtype(dtype)


json_like = st.recursive(
    st.none() | st.integers() | st.text(max_size=5) | st.sampled_from(["<f4", "|O", "<M8[ns]"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.fixed_dictionaries(
            {
                "columns": st.lists(st.tuples(st.text(max_size=2), inner, st.integers()).map(list))
                | inner,
                "itemsize": inner,
                "aligned": inner,
            }
        )
        | st.tuples(inner, st.lists(st.integers(), max_size=3)).map(list)
    ),
    max_leaves=6,
)


@given(json_like)
def test_restoring_anything(described: Any) -> None:
    """Data of unknown origin gives a plain dtype or a DecodeError: C58."""
    try:
        dtype = restore_dtype(described)
    except DecodeError:
        return
    assert not dtype.hasobject
    assert dtype.itemsize > 0


def test_nesting_is_bounded() -> None:
    """A description nested within itself ends with a DecodeError."""
    described: Any = "<f4"
    for _ in range(20):
        described = [described, [1]]
    with pytest.raises(DecodeError, match="deep"):
        restore_dtype(described)


@pytest.mark.parametrize("shape", [None, (1,), [True], [-1], [1.0], [2**48], [1] * 33, "1"])
def test_refuses_shapes(shape: Any) -> None:
    """A shape that is not a list of at most 32 lengths is a DecodeError: C58."""
    with pytest.raises(DecodeError):
        checked_shape(shape)


def test_shapes() -> None:
    """A good shape comes back as a tuple."""
    assert checked_shape([]) == ()
    assert checked_shape([0, 3]) == (0, 3)
