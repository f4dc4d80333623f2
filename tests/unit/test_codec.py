"""The codec is lossless for what it takes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_state_sync import wire
from redis_state_sync.codec import decode, encode, register_type
from redis_state_sync.errors import DecodeError, EncodeError
from tests.unit.trees import arrays, dtypes, identical, trees


def round_trip(tree: Any) -> Any:
    return decode(bytes(encode(tree)))


@given(trees)
def test_round_trip_is_bit_for_bit(tree: Any) -> None:
    """Types, key types, order, shapes, dtypes and every bit survive: C49, C50, C52."""
    assert identical(tree, round_trip(tree))


@given(arrays)
def test_arrays(array: np.ndarray[Any, Any]) -> None:
    """Arrays of any plain dtype and shape come back bit for bit: C49, C50."""
    assert identical(array, round_trip(array))


@given(arrays.filter(lambda a: a.size > 0))
def test_numpy_scalars(array: np.ndarray[Any, Any]) -> None:
    """A numpy scalar stays one, of the same dtype."""
    value = array.flat[0]
    if isinstance(value, np.ndarray):  # an item of a dtype that is itself an array
        return
    assert identical(value, round_trip(value))


BASE = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


@pytest.mark.parametrize(
    "array",
    [
        np.array(3.5),
        np.empty((0,)),
        np.empty((2, 0, 4), np.int8),
        np.asfortranarray(BASE),
        BASE.transpose(2, 0, 1),
        BASE[:, ::2, ::-1],
        np.broadcast_to(np.float32(2), (3, 3)),
        BASE.astype(">f4"),
        BASE.astype(">i8")[..., 1],
        np.array([True, False]),
        np.array([1 + 2j, np.nan], np.complex64),
        np.array(["NaT", "2024-02-29"], "M8[D]"),
        np.array([1, -1], "m8[25s]"),
        np.array([b"a\0b", b""], "S4"),
        np.array(["ä", ""], "U3"),
        np.array([(1, (2.0, [3, 4]))], [("a", ">i2"), ("b", [("c", "f8"), ("d", "i4", (2,))])]),
        np.zeros(2, np.dtype([("a", "i1"), ("b", "f8")], align=True)),
        np.frombuffer(b"\x01\x00\xc0\x7f", np.float32),  # a NaN with a payload
        np.float16([1e-7, np.inf]),
        np.longdouble([1]) / 3,
    ],
    ids=lambda a: f"{a.dtype}{a.shape}".replace(" ", ""),
)
def test_special_arrays(array: np.ndarray[Any, Any]) -> None:
    """0-d, empty, strided, broadcast, foreign byte order, structured and dated arrays: C49, C50."""
    assert identical(array, round_trip(array))


def test_fortran_order_survives() -> None:
    """An array in Fortran order comes back in Fortran order."""
    assert round_trip(np.asfortranarray(BASE)).flags.f_contiguous


def test_decoded_arrays_are_fresh_and_writable() -> None:
    """In-place updates of a decoded array work, and reach neither blob nor other arrays: C55."""
    blob = bytes(encode({"a": BASE, "b": BASE}))
    tree = decode(blob)
    tree["a"] += 1
    assert identical(decode(blob), {"a": BASE, "b": BASE})
    assert identical(tree["b"], BASE)


def test_encoding_is_a_snapshot() -> None:
    """Changing an array after `encode` does not change the blob."""
    array = BASE.copy()
    blob = encode(array)
    array += 1
    assert identical(decode(blob), BASE)


def test_equal_trees_have_equal_blobs() -> None:
    """The same values give the same bytes: that is how an unchanged component is recognised."""
    tree = {"w": BASE[:, ::2], "n": (1, [None, "x"])}
    assert bytes(encode(tree)) == bytes(encode({"w": BASE[:, ::2].copy(), "n": (1, [None, "x"])}))


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 2**64, -(2**64), 10**3000, 2**63 - 1, -0.0])
def test_numbers_of_any_size(value: Any) -> None:
    """Ints beyond 64 bits and the sign of zero survive."""
    assert identical(value, round_trip(value))


@pytest.mark.parametrize(
    "value", [np.str_(""), np.str_("äx"), np.bytes_(b""), np.bytes_(b"a\0"), np.datetime64("NaT"),
              np.bool_(True), np.int8(-3), np.float64(1.5), np.complex128(1j), np.timedelta64(3)]
)  # fmt: skip
def test_special_numpy_scalars(value: Any) -> None:
    """numpy scalars stay what they are, texts that are empty or end with zeros included."""
    assert identical(value, round_trip(value))


def test_ordered_dict_arrives_as_dict() -> None:
    """An OrderedDict (a torch state dict) keeps its order and arrives as a dict."""
    tree = OrderedDict([("b", 1), ("a", 2)])
    decoded = round_trip(tree)
    assert type(decoded) is dict
    assert list(decoded.items()) == [("b", 1), ("a", 2)]


def test_key_types_are_kept_apart() -> None:
    """None, 1 and '1' are three keys, as RLlib's agent ids need: C52."""
    tree = {None: 1, 1: 2, "1": 3, 2**70: 4, "": {}}
    assert identical(tree, round_trip(tree))


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ({1, 2}, "set"),
        (object(), "object"),
        (len, "builtin_function_or_method"),
        (range(3), "range"),
        (bytearray(b"x"), "bytearray"),
        (memoryview(b"x"), "memoryview"),
        (np.ma.array([1]), "MaskedArray"),
        (Fraction(1, 2), "Fraction"),
        (np.array([object()]), "Python objects"),
        (np.array([{}, "x"], object)[:1], "Python objects"),
        (np.empty(3, "V0"), "no size"),
        (np.array([("x", 1)], [("a", object), ("b", int)]), "Python objects"),
        (np.array(["x"], np.dtypes.StringDType()), "objects|published"),
        (10**4000, "bits is too long"),
        ("\ud800", "surrogates"),
    ],
)
def test_refuses_with_the_path(value: Any, name: str) -> None:
    """What can not be carried is refused when published, naming path and type: C48, C56."""
    with pytest.raises(EncodeError, match=rf"^conn/My\[1\]/cache: .*({name})"):
        encode({"My": [0, {"cache": value}]}, path="conn")


def test_refuses_string_dtypes_with_the_remedy() -> None:
    """numpy 2's strings of any length are refused by what makes them publishable."""
    strings = np.array(["a", "bc"], dtype=np.dtypes.StringDType())
    with pytest.raises(EncodeError, match=r"^m/w: .*StringDType.*astype\('U64'\)"):
        encode({"w": strings}, path="m")
    assert round_trip(strings.astype("U64")).tolist() == ["a", "bc"]


@pytest.mark.parametrize("key", [(1, 2), 1.5, b"x", True, np.int64(1), np.str_("x"), frozenset()])
def test_refuses_other_keys(key: Any) -> None:
    """Keys that would not come back as they are are refused when published: C52."""
    with pytest.raises(EncodeError, match=r"^a/b: key .* must be str, int or None"):
        encode({"b": {key: 1}}, path="a")


def test_refuses_keys_with_surrogates() -> None:
    """A key that is no Unicode text is refused when published, naming the path."""
    with pytest.raises(EncodeError, match=r"^a/b: .*surrogates"):
        encode({"b": {"\udc80": 1}}, path="a")


def test_refuses_a_tree_within_itself() -> None:
    """A tree that holds itself is an EncodeError, no RecursionError."""
    tree: list[Any] = []
    tree.append(tree)
    with pytest.raises(EncodeError, match="nested deeper"):
        encode(tree)


@given(st.integers(1, 101))
def test_whatever_can_be_published_can_be_read(depth: int) -> None:
    """There is no depth that is published but can not be read: C52."""
    tree: Any = np.str_("x")
    for i in range(depth):
        tree = {"k": tree} if i % 2 else (tree,)
    try:
        blob = encode(tree)
    except EncodeError:
        assert depth >= wire.MAX_DEPTH
        return
    assert identical(tree, decode(blob))


@given(dtypes)
def test_dtypes_survive_or_are_refused(dtype: np.dtype[Any]) -> None:
    """An array's dtype comes back equal, or is refused when published, never changed: C50."""
    try:
        blob = encode(np.zeros(1, dtype))
    except EncodeError:
        return
    assert decode(blob).dtype == dtype


class Angle:
    def __init__(self, degrees: float) -> None:
        self.degrees = degrees


def _angle(tree: Any) -> Angle:
    return Angle({"degrees": tree}["wrong" if tree == "wrong" else "degrees"])


@pytest.fixture
def registered() -> Iterator[None]:
    register_type(Angle, "test.Angle", lambda a: a.degrees, _angle)
    yield
    del wire.encoders[Angle], wire.decoders["test.Angle"]


@pytest.mark.usefixtures("registered")
def test_registered_types() -> None:
    """A registered type goes out and comes back; what its reader raises is a DecodeError."""
    assert round_trip([Angle(90.0)])[0].degrees == 90.0
    with pytest.raises(DecodeError, match="KeyError"):
        decode(encode(Angle("wrong")))  # type: ignore[arg-type]


def test_a_type_that_only_the_learner_registered(registered: None) -> None:
    """A reader that lacks a registration names the type."""
    blob = encode(Angle(1.0))
    reader = wire.decoders.pop("test.Angle")
    try:
        with pytest.raises(DecodeError, match=r"test\.Angle.*not registered"):
            decode(blob)
    finally:
        wire.decoders["test.Angle"] = reader
