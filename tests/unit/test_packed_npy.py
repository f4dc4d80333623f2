"""RLlib's packed arrays are taken apart at publish, and a forged one never reaches RLlib."""

from __future__ import annotations

import base64
import io
import pickle
import zlib
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given

from redis_state_sync import packed_npy
from redis_state_sync.codec import decode, encode
from redis_state_sync.errors import DecodeError, EncodeError
from redis_state_sync.packed_npy import looks_packed
from tests.unit.bounds import assert_linear
from tests.unit.test_codec_hostile import crafted
from tests.unit.trees import arrays, identical


def rllib_pack(array: Any) -> str:
    """What `ray.rllib.utils.serialization._serialize_ndarray` does."""
    buffer = io.BytesIO()
    np.save(buffer, array)
    return base64.b64encode(zlib.compress(buffer.getvalue())).decode("ascii")


def rllib_load(text: Any) -> Any:
    """What `_deserialize_ndarray` there does, which is why these tests exist."""
    return np.load(io.BytesIO(zlib.decompress(base64.b64decode(text))), allow_pickle=True)


class Trap:
    ran = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return _spring, ()


def _spring() -> str:
    Trap.ran += 1
    return "sprung"


PICKLE = pickle.dumps(Trap(), protocol=2)
FORGED = base64.b64encode(zlib.compress(PICKLE)).decode()
OBJECTS = rllib_pack(np.array([Trap()], object))


def deflated(wbits: int, data: bytes = PICKLE) -> str:
    compress = zlib.compressobj(wbits=wbits)
    return base64.b64encode(compress.compress(data) + compress.flush()).decode()


VARIANTS = {
    "plain": FORGED,
    "object array": OBJECTS,
    "junk": "!" + "\n!\0".join(FORGED),
    "long junk": "~" * 100_000 + FORGED,
    "behind the end": FORGED + "==junk" + FORGED,
    "trailing data": base64.b64encode(zlib.compress(PICKLE) + b"more").decode(),
    "small window": deflated(9),
    "stored": base64.b64encode(zlib.compress(PICKLE, 0)).decode(),
    "bytes": FORGED.encode(),
    "numpy str": np.str_(FORGED),
    "numpy bytes": np.bytes_(FORGED.encode()),
    "0-d array of bytes": np.array(FORGED.encode()),
    "array of bytes": np.frombuffer(FORGED.encode(), np.uint8),
    "strided array": np.frombuffer(FORGED.encode(), np.uint8).repeat(2)[::2],
    "array of floats": np.frombuffer(FORGED.encode().ljust(8 * (len(FORGED) // 8 + 1)), np.float64),
}


@pytest.mark.parametrize("value", VARIANTS.values(), ids=VARIANTS)
def test_every_way_into_rllibs_loader_is_seen(value: Any) -> None:
    """Whatever RLlib's loader would unpickle looks packed to us, however it is disguised: C48."""
    before = Trap.ran
    rllib_load(value)
    assert Trap.ran > before, "this variant does not reach the loader, so it tests nothing"
    assert looks_packed(value)


@pytest.mark.parametrize("value", VARIANTS.values(), ids=VARIANTS)
def test_a_forged_text_is_refused_at_both_ends(value: Any) -> None:
    """A forged packed array is refused when published and when read, and nothing runs: C48."""
    before = Trap.ran
    with pytest.raises(EncodeError, match=r"^c/filter: "):
        encode({"filter": value}, path="c")
    with pytest.raises(DecodeError, match="RLlib would load"):
        decode(encode({"filter": value}, guard_packed=False) if not _taken_apart(value)
               else crafted(["d", ["filter", str(value)]]))  # fmt: skip
    assert Trap.ran == before


def _taken_apart(value: Any) -> bool:
    return isinstance(value, str)


def test_a_forged_header_is_refused() -> None:
    """A forged string is refused wherever it stands in the header: value, tuple, packed node."""
    before = Trap.ran
    for node in (FORGED, FORGED.encode(), ["t", [FORGED]], ["S", FORGED],
                 ["s", f"<U{len(FORGED)}", FORGED.encode("utf-32-le")]):  # fmt: skip
        with pytest.raises(DecodeError):
            decode(crafted(node))
    assert Trap.ran == before


@pytest.mark.parametrize(
    "array",
    [
        np.arange(3.0),
        np.array(5),
        np.zeros((2, 0)),
        np.asfortranarray(np.eye(3, 2)),
        np.array(["x"]),
    ],
    ids=str,
)
def test_rllibs_strings_survive(array: np.ndarray[Any, Any]) -> None:
    """A MeanStdFilter's string arrives as the same string, and RLlib reads the same array: C36."""
    text = rllib_pack(array)
    blob = bytes(encode({"state": text}))
    assert text.encode() not in blob  # taken apart: no compressed text travels
    decoded = decode(blob)["state"]
    assert decoded == text
    assert identical(rllib_load(decoded), array)


@given(arrays)
def test_any_array(array: np.ndarray[Any, Any]) -> None:
    """Any plain array that RLlib packs survives, or is refused when published: C36."""
    try:
        text = rllib_pack(array)
        reference = rllib_load(text)
    except ValueError:
        return  # numpy itself can not write or read it
    try:
        blob = encode({"state": text}, path="c")
    except EncodeError:
        assert array.dtype != reference.dtype or reference.dtype.hasobject
        return
    assert identical(rllib_load(decode(blob)["state"]), reference)


@pytest.mark.parametrize(
    "text",
    ["", "hello world", "a" * 1000, base64.b64encode(b"x" * 99).decode(), "ä" * 50,
     FORGED[:-8], FORGED[:40], base64.b64encode(b"\x78\x9c" + bytes(40)).decode(),
     b"", bytes(1000), 5, 1.5, None, True, np.zeros(1000), np.arange(1000.0)],
    ids=lambda v: str(v)[:20],
)  # fmt: skip
def test_honest_values_do_not_look_packed(text: Any) -> None:
    """Ordinary texts, numbers and arrays are not mistaken for packed arrays."""
    assert not looks_packed(text)


def test_weights_are_not_guarded() -> None:
    """RLModule weights never reach RLlib's loader: whatever bits they have, they are read."""
    weights = np.frombuffer(FORGED.encode(), np.uint8)
    blob = encode({"w": weights}, guard_packed=False)
    assert identical(decode(blob, guard_packed=False)["w"], weights)


def test_a_bomb_is_not_inflated() -> None:
    """A stream that inflates to gigabytes is refused after a bounded part of it: C58."""
    compress = zlib.compressobj()
    data = b"".join([compress.compress(bytes(1 << 20)) for _ in range(80)]) + compress.flush()
    bomb = base64.b64encode(data).decode()
    assert len(bomb) < 1 << 20
    assert looks_packed(bomb)
    # Without its end it would not look packed to one who inflated all of it to find out.
    assert looks_packed(bomb[:-16])
    with pytest.raises(EncodeError, match="more than"):
        encode(bomb)


def test_looking_takes_linear_time() -> None:
    """How long it takes to look at a text is in proportion to it, whatever it inflates to: C58."""
    noise = np.random.default_rng(0).bytes(1 << 20)

    def make(size: int) -> Any:
        # Stored, it hardly shrinks: what is not yet inflated is long for long.
        text = base64.b64encode(zlib.compress(noise[:size], 0)[:-4] + b"oops").decode()
        return lambda: [looks_packed(text) for _ in range(5)]

    assert_linear(make, 1 << 17)


@pytest.mark.parametrize("size", [1 << 16, (1 << 16) - 20, 3 << 16, (3 << 16) + 1, 1_000_000])
@pytest.mark.parametrize("level", [0, 1, 9])
def test_slices_hide_nothing(size: int, level: int) -> None:
    """A stream that ends at, before or behind the border of a slice is seen as complete: C48."""
    noise = np.random.default_rng(0).bytes(size)
    for cut in range(-3, 12):
        stream = zlib.compress(noise[: size - cut] if cut > 0 else noise + bytes(-cut), level)
        text = base64.b64encode(stream).decode()
        assert looks_packed(text)
        assert not looks_packed(base64.b64encode(stream[:-1]).decode())


def test_an_archive_is_no_array() -> None:
    """An .npz archive is refused: RLlib never writes one."""
    buffer = io.BytesIO()
    np.savez(buffer, a=np.zeros(2))
    with pytest.raises(ValueError, match="archive"):
        packed_npy.unpack(base64.b64encode(zlib.compress(buffer.getvalue())).decode())


def test_the_guard_reads_what_rllib_reads() -> None:
    """msgpack hands on exactly the text that was checked."""
    assert msgpack.unpackb(msgpack.packb(FORGED)) == FORGED
