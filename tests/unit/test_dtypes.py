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


EVIL = [
    "__import__('os').system('true')", "O", "object", "|O", "|O8", "<f4,|O", "f4, O", "(2,)O",
    "2O", "i4,(2,3)f8", "float64", "f", "d", "int", "q", "?", "P", "p", "c", "g", "G", "U", "S",
    "V", "=f4", "@f4", "f4", "<f4\n", "<f4 ", " <f4", "<f4\0", "<f٤", "<f", "<f-4", "<f04x", "<f3",
    "<c1", "<M8[", "<M8[]", "<M8[00s]", "<M8[01s]", "<M8[ns", "<M8[nonsense]", "<M8[9999999s]",
    "<m8[0s]", "<m8[-1s]",
    "<M8[{x}]", "<M8[s/2]", "<M8[2s/3]", "|S0", "<U0", "|V0", "<U1000000000", "|S9999999999", "|T",
    "T", "StringDType", "numpy.float64", "builtins.eval", "tests.unit:x", "x" * 10**6,
]  # fmt: skip


@pytest.mark.parametrize("text", EVIL, ids=lambda text: repr(text[:30]))
def test_texts_that_are_no_plain_dtype(text: str) -> None:
    """A text of any other content is not looked up, not evaluated, and not echoed: C48."""
    with pytest.raises(DecodeError) as caught:
        restore_dtype(text)
    assert len(str(caught.value)) < 300


def structure(columns: Any, itemsize: Any = 8, aligned: Any = False) -> Any:
    return {"columns": columns, "itemsize": itemsize, "aligned": aligned}


@pytest.mark.parametrize(
    "described",
    [
        structure([["a", "|O", 0]]),
        structure([["a", "<f4", 0], ["b", "|O", 0]]),
        structure([["a", structure([["b", "|O", 0]]), 0]]),
        structure([["a", ["|O", [1]], 0]]),
        ["|O", [2]],
        [structure([["a", "|O", 0]]), [2]],
        ["<f4", [2**40]],
        ["<f4", [2**47, 2**47]],
        ["<f4", [-1]],
        ["<f4", [0]],
        ["<f4"],
        ["<f4", [1], 1],
        ["<f4", "1"],
        structure([["a", "<f8", 0]], 4),
        structure([["a", "<f8", 0]], -8),
        structure([["a", "<f8", 0]], 2**31),
        structure([["a", "<f8", 0]], 2**63),
        structure([["a", "<f8", 0]], "8"),
        structure([["a", "<f8", 0]], None),
        structure([["a", "<f8", 0]], float("nan")),
        structure([["a", "<f8", -1]]),
        structure([["a", "<f8", 2**62]]),
        structure([["a", "<f8", True]]),
        structure([["a", "<f8", "0"]]),
        structure([["a", "<f8"]]),
        structure([["a", "<f8", 0, "title"]]),
        structure([[["title", "a"], "<f8", 0]]),
        structure([[5, "<f8", 0]]),
        structure([[b"a", "<f8", 0]]),
        structure([["a", "<f8", 0], ["a", "<f8", 0]]),
        structure([["a" * 257, "<f8", 0]]),
        structure([["a", "<f8", 1]], 16, True),
        structure([]),
        structure({}),
        structure("abc"),
        structure([["a", "<f8", 0]] * 1025),
        structure(
            [[f"s{i}", structure([[f"f{j}", "|u1", j] for j in range(40)], 40), i * 40]
             for i in range(30)],
            1200,
        ),
        {"columns": [["a", "<f8", 0]]},
        {},
    ],
    ids=lambda described: str(described)[:50],
)  # fmt: skip
def test_structures_that_are_no_plain_dtype(described: Any) -> None:
    """Objects, sizes and offsets that do not fit, too many or too long names are refused: C48."""
    with pytest.raises(DecodeError) as caught:
        restore_dtype(described)
    assert len(str(caught.value)) < 300


def test_the_number_of_fields_is_that_of_all_levels() -> None:
    """1024 fields survive, wherever they are nested; one more is refused when published: C58."""
    inner = np.dtype([(f"f{i}", "u1") for i in range(31)])
    fits = np.dtype([(f"s{i}", inner) for i in range(32)])
    assert restore_dtype(describe_dtype(fits)) == fits
    with pytest.raises(EncodeError, match="more than 1024 fields"):
        describe_dtype(np.dtype([("a", fits), ("b", "u1")]))
