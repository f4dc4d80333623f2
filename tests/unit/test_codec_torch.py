"""torch tensors travel by their bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from redis_state_sync.codec import decode, encode
from redis_state_sync.errors import EncodeError
from redis_state_sync.testing import skip_or_fail

try:
    import torch
except ImportError:
    skip_or_fail("these tests need torch: pip install 'redis-state-sync[rllib]'")

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn,
    torch.float8_e5m2, torch.int8, torch.int64, torch.uint8, torch.uint16, torch.bool,
    torch.complex64,
]  # fmt: skip


def bits(tensor: Any) -> bytes:
    flat = tensor.detach().contiguous().reshape(-1)
    return bytes(flat.view(torch.uint8).numpy()) if flat.numel() else b""


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 3), (2, 0, 4), (5, 2)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_round_trip(dtype: Any, shape: tuple[int, ...]) -> None:
    """Every dtype, bfloat16 and float8 included, and every shape comes back bit for bit: C53."""
    tensor = torch.randint(0, 2, shape).to(dtype)
    decoded = decode(bytes(encode({"t": tensor})))["t"]
    assert (decoded.dtype, decoded.shape) == (tensor.dtype, tensor.shape)
    assert bits(decoded) == bits(tensor)


def test_any_layout_in_memory() -> None:
    """Transposed, strided, conjugated and gradient-carrying tensors arrive as plain ones."""
    base = torch.arange(12.0, requires_grad=True).reshape(3, 4)
    for tensor in (base.T, base[:, ::2], torch.complex(base, base).conj()):
        decoded = decode(bytes(encode(tensor)))
        assert torch.equal(decoded, tensor)
        assert not decoded.requires_grad


def test_decoded_tensors_are_writable() -> None:
    """In-place updates work and torch warns of nothing: C55."""
    blob = bytes(encode(torch.zeros(3)))
    tensor = decode(blob)
    tensor += 1
    assert torch.equal(decode(blob), torch.zeros(3))
    assert torch.from_numpy(decode(bytes(encode(np.zeros(3))))).add_(1).sum() == 3


def test_module_state_dict() -> None:
    """A module's state dict can be published as it is, and loaded."""
    module = torch.nn.Linear(3, 2).to(torch.bfloat16)
    other = torch.nn.Linear(3, 2).to(torch.bfloat16)
    other.load_state_dict(decode(bytes(encode(module.state_dict()))))
    assert torch.equal(other.weight, module.weight)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.eye(3).to_sparse(),
        lambda: torch.quantize_per_tensor(torch.zeros(3), 0.1, 0, torch.quint8),
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    ],
    ids=["sparse", "quantized", "nested"],
)
@pytest.mark.filterwarnings("ignore")
def test_refuses_tensors_without_plain_bits(make: Callable[[], Any]) -> None:
    """Sparse, quantized and nested tensors are refused by their path and with the remedy."""
    tensor = make()
    with pytest.raises(EncodeError, match=r"^m/w: only dense.*to_dense"):
        encode({"w": tensor}, path="m")


def test_refuses_tensors_without_values() -> None:
    """A tensor on the meta device is refused by its path."""
    with pytest.raises(EncodeError, match=r"^m/w: .*meta device"):
        encode({"w": torch.empty(3, device="meta")}, path="m")


class Sharded(torch.Tensor):
    """A tensor whose values are not all here."""

    def detach(self) -> torch.Tensor:
        raise RuntimeError("not on this rank")


def test_refuses_tensors_that_can_not_be_read() -> None:
    """What torch says about a tensor that it can not copy comes with the path."""
    with pytest.raises(EncodeError, match=r"^m/w: .*Sharded.*not on this rank"):
        encode({"w": torch.ones(3).as_subclass(Sharded)}, path="m")
