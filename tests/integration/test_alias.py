"""A module that points at its weights is the module that it was: no Ray cluster is started."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.core.rl_module.torch.torch_compile_config import TorchCompileConfig
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from torch import Tensor, nn
from torch.nn.utils import parametrize

import redis_state_sync.rllib.alias
from redis_state_sync.codec import decode, encode
from redis_state_sync.rllib.alias import alias, is_stock, plan
from tests.integration.held import assert_same

Arrays = dict[str, np.ndarray[Any, Any]]


class Net(TorchRLModule):
    """Layers of several kinds, a buffer, and one that is not saved."""

    def setup(self) -> None:
        self.conv = nn.Conv2d(3, 4, 3)
        self.gru = nn.GRU(144, 8, batch_first=True)
        self.head = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 2))
        self.head[1].bias.requires_grad_(False)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("cache", torch.full((2,), 7.0), persistent=False)

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        features = torch.relu(self.conv(batch["obs"])).flatten(1)
        out, _ = self.gru(features.unsqueeze(1))
        return {"logits": self.head(out[:, 0]) + self.cache.mean()}


def make(cls: type[TorchRLModule] = Net) -> Any:
    space = gym.spaces.Box(0, 1, (3, 8, 8))
    return RLModuleSpec(
        module_class=cls, observation_space=space, action_space=gym.spaces.Discrete(2)
    ).build()


def state_like(module: nn.Module, seed: int = 0) -> Arrays:
    """Other values for a module, in memory as a mapping's is: aligned, writable, one's own."""
    rng = np.random.default_rng(seed)
    tree = {
        name: rng.standard_normal(value.shape).astype(str(value.dtype).removeprefix("torch."))
        for name, value in module.state_dict().items()
    }
    blob = encode(tree, guard_packed=False)
    room = np.zeros(blob.size + 64, np.uint8)
    start = -room.ctypes.data % 64
    room[start : start + blob.size] = blob
    return dict(decode(room[start : start + blob.size], guard_packed=False, copy=False))


def aliased(module: nn.Module, state: Arrays) -> None:
    """Points a module at a state, and makes sure that it does."""
    moves = plan(module, state)
    assert moves is not None
    alias(moves)
    for name, tensor in module.state_dict(keep_vars=True).items():
        assert tensor.data_ptr() == state[name].ctypes.data


def logits(module: Any) -> Tensor:
    batch = {"obs": torch.linspace(0, 1, 5 * 192).reshape(5, 3, 8, 8)}
    return module.forward_inference(batch)["logits"]


def arrays(module: Any) -> Arrays:
    return {name: np.array(value) for name, value in module.get_state().items()}


def facts(module: nn.Module) -> list[Any]:
    """What a module's tensors are, but for their values."""
    return [
        (name, id(tensor), type(tensor), tensor.requires_grad, tensor.stride(), tensor.is_leaf)
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]
    ]


def test_the_same_as_copied() -> None:
    """Outputs, state, and everything about the tensors but where they lie are as after a copy."""
    pointing, copying = make(), make()
    assert is_stock(pointing)
    before = facts(pointing)
    for seed in range(3):
        state = state_like(copying, seed)
        copying.set_state(state)
        aliased(pointing, state)
        assert facts(pointing) == before
        assert_same(arrays(pointing), arrays(copying))
        assert torch.equal(logits(pointing), logits(copying))
    assert pointing.cache.tolist() == [7.0, 7.0]


def test_names_that_are_not_the_modules_are_ignored() -> None:
    """A learner's state may hold more, such as a value function: RLlib ignores it, too."""
    module = make()
    state = state_like(module)
    aliased(module, {"vf.weight": np.zeros(3, np.float32), **state})
    assert_same(arrays(module), state)


def test_a_module_trains_on() -> None:
    """Gradients, an optimizer from before, and in-place updates act as on weights of its own."""
    modules = pointing, copying = make(), make()
    optimizers = [torch.optim.Adam(module.parameters(), lr=0.1) for module in modules]
    for seed in range(2):
        states = [state_like(module, seed) for module in modules]
        aliased(pointing, states[0])
        copying.set_state(states[1])
        for module, optimizer in zip(modules, optimizers, strict=True):
            optimizer.zero_grad()
            module.forward_train({"obs": torch.ones(2, 3, 8, 8)})["logits"].pow(2).sum().backward()
            optimizer.step()
        assert_same(arrays(pointing), arrays(copying))
        assert not np.array_equal(arrays(pointing)["conv.weight"], states[1]["conv.weight"])


@pytest.mark.parametrize(
    "through", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["deepcopy", "pickle"]
)
def test_copies_of_a_module_are_whole(through: Callable[[Any], Any]) -> None:
    """A deep copy, or what comes out of a pickle, has all the weights, and its own."""
    module = make()
    state = state_like(module)
    aliased(module, state)
    other = through(module)
    assert torch.equal(logits(other), logits(module))
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert_same(arrays(module), state)
    assert is_stock(other)
    aliased(other, state_like(other, 1))


def test_a_state_from_outside_is_copied() -> None:
    """`set_state` and `load_state_dict` write into the memory that the module points at."""
    module = make()
    state = state_like(module)
    aliased(module, state)
    other = state_like(module, 1)
    module.set_state(other)
    assert_same(arrays(module), other)
    assert_same(state, other)  # It was given away.


def test_all_or_nothing() -> None:
    """If a tensor can not be pointed elsewhere, those before it point at what they did."""
    module = make()
    before = arrays(module)
    moves = plan(module, state_like(module))
    assert moves is not None
    own, _ = moves[-1]
    moves[-1] = own, torch.zeros(2, device="meta")
    pointers = [tensor.data_ptr() for tensor, _ in moves]
    with pytest.raises(RuntimeError):
        alias(moves)
    assert [tensor.data_ptr() for tensor, _ in moves] == pointers
    assert_same(arrays(module), before)


class OwnSetState(Net):
    def set_state(self, state: Any) -> None:
        super().set_state(state)


class OwnLoading(Net):
    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return super().load_state_dict(*args, **kwargs)


class OwnExtraState(Net):
    def get_extra_state(self) -> Any:
        return torch.zeros(1)

    def set_extra_state(self, state: Any) -> None: ...


class OwnLayer(nn.Linear):
    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)


def hook(*args: Any, **kwargs: Any) -> None: ...


NOT_STOCK: dict[str, Callable[[], Any]] = {
    "set_state": lambda: make(OwnSetState),
    "load_state_dict": lambda: make(OwnLoading),
    "extra state": lambda: make(OwnExtraState),
    "no RLModule": lambda: nn.Linear(2, 2),
    "no module": lambda: None,
}
CHANGES: dict[str, Callable[[Any], Any]] = {
    "layer": lambda m: setattr(m, "head", OwnLayer(8, 2)),
    "batch norm": lambda m: setattr(m, "norm", nn.BatchNorm1d(8)),
    "pre-hook": lambda m: m.register_load_state_dict_pre_hook(hook),
    "pre-hook of a layer": lambda m: m.head[1].register_load_state_dict_pre_hook(hook),
    "post-hook": lambda m: m.gru.register_load_state_dict_post_hook(hook),
    "set_state of one": lambda m: setattr(m, "set_state", hook),
    "loading of one": lambda m: setattr(m.conv, "_load_from_state_dict", hook),
    "parametrization": lambda m: parametrize.register_parametrization(m.conv, "bias", nn.Tanh()),
    "compiled by RLlib": lambda m: m.compile(TorchCompileConfig()),
    "compiled layer": lambda m: setattr(m, "head", torch.compile(m.head)),
    "compiled in place": lambda m: m.head.compile(),
    "compiled forward": lambda m: setattr(m.head, "forward", torch.compile(m.head.forward)),
    "script": lambda m: setattr(m, "head", torch.jit.script(nn.Linear(8, 2))),
    "lazy": lambda m: setattr(m, "lazy", nn.LazyLinear(2)),
}


@pytest.mark.parametrize("case", NOT_STOCK)
def test_what_is_not_stock(case: str) -> None:
    """A module that has its own way to load a state is told from one that copies arrays."""
    assert not is_stock(NOT_STOCK[case]())


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
@pytest.mark.parametrize("case", CHANGES)
def test_what_is_stock_no_more(case: str) -> None:
    """Hooks, replaced methods and layers, and compilation are seen when they come later, too."""
    module = make()
    aliased(module, state_like(module))
    assert is_stock(module)
    CHANGES[case](module)
    assert not is_stock(module)


class Subclass(nn.Parameter):
    pass


def tie(module: Any) -> None:
    module.tied = module.conv


def hold(module: Any, view: Callable[[Tensor], Any]) -> None:
    module.held = [view(module.conv.weight)]


def flatten(layer: nn.Linear) -> None:
    """Lays a layer's parameters into one stretch of memory, as optimizers and the like do."""
    flat = torch.zeros(18)
    layer.weight.data, layer.bias.data = flat[:16].view(2, 8), flat[16:]


def inferred(module: Any) -> None:
    with torch.inference_mode():
        tensor = torch.zeros(3)
    module.register_buffer("made_in_inference", tensor)


FALL_BACK: dict[str, Callable[[Any], Any]] = {
    "two names": tie,
    "shared with processes": lambda m: m.share_memory(),
    "view": lambda m: hold(m, lambda t: t.detach()[0]),
    "numpy view": lambda m: hold(m, lambda t: t.detach().numpy()),
    "flat": lambda m: flatten(m.head[1]),
    "subclass": lambda m: m.register_parameter("p", Subclass(torch.zeros(2))),
    "buffer with a gradient": lambda m: m.register_buffer("b", m.head[1].weight * 2),
    "inference tensor": inferred,
    "sparse": lambda m: m.register_buffer("b", torch.zeros(2, 2).to_sparse()),
    "meta": lambda m: m.register_buffer("b", torch.zeros(2, device="meta")),
}


@pytest.mark.parametrize("case", FALL_BACK)
def test_tensors_that_are_copied_into(case: str) -> None:
    """A module falls back when one of its tensors is unusual, or when others see its memory."""
    module = make()
    aliased(module, state_like(module))
    FALL_BACK[case](module)
    state = {name: np.zeros(t.shape, np.float32) for name, t in module.state_dict().items()}
    assert plan(module, state) is None


def test_memory_that_is_let_go_can_be_left() -> None:
    """A module falls back only as long as somebody holds a view of its memory."""
    module = make()
    held = module.state_dict()
    assert plan(module, state_like(module)) is None
    del held
    aliased(module, state_like(module))


def test_nothing_is_pointed_at_in_inference_mode() -> None:
    """In inference mode a module falls back: else it could not be trained any more."""
    module = make()
    with torch.inference_mode():
        assert plan(module, state_like(module)) is None
    assert plan(module, state_like(module)) is not None


def test_a_torch_that_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch can not tell who else sees a tensor's memory, every module falls back."""
    module = make()
    monkeypatch.setattr(redis_state_sync.rllib.alias, "_use_count", None)
    assert plan(module, state_like(module)) is None
    monkeypatch.setattr(redis_state_sync.rllib.alias, "_ONE_USE", None)
    assert plan(module, state_like(module)) is None


def test_a_graph_finds_out() -> None:
    """A backward pass that needs weights from before raises, as it does after a copy."""
    for load in (aliased, lambda module, state: module.set_state(state)):
        module = make()
        loss = module.conv.weight.pow(2).sum()
        load(module, state_like(module))
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


REFUSED: dict[str, Callable[[Arrays], Any]] = {
    "absent": lambda s: s.pop("count"),
    "shape": lambda s: s.update({"head.1.bias": zeros(3)}),
    "scalar": lambda s: s.update({"head.1.bias": 3}),
    "backwards": lambda s: s.update({"head.1.bias": zeros(2)[::-1]}),
    "byte order": lambda s: s.update({"head.1.bias": zeros(2).view(">f4")}),
    "text": lambda s: s.update({"head.1.bias": np.array(["a", "b"])}),
    "bytes": lambda s: s.update({"head.1.bias": np.array([b"a", b"b"])}),
    "dict": lambda s: s.update({"count": {"a": zeros(2)}}),
}


def zeros(*shape: int) -> np.ndarray[Any, Any]:
    """Zeros in memory that is aligned as a mapping's is."""
    array: np.ndarray[Any, Any] = state_like(nn.ParameterDict({"p": torch.zeros(shape)}))["p"]
    array[...] = 0
    return array


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_has_no_plan(case: str) -> None:
    """What RLlib may refuse, or load in part, is left to RLlib."""
    module = make()
    state = state_like(module)
    REFUSED[case](state)
    assert plan(module, state) is None


CONVERTED: dict[str, Callable[[Any, Arrays], Any]] = {
    "scalar": lambda m, s: s.update(count=2**40 + 1),
    "smaller ints": lambda m, s: s.update(count=np.int32(5)),
    "float64 for float32": lambda m, s: s.update({"head.1.bias": np.array([0.1, 1e99])}),
    "float64, rounded": lambda m, s: (m.conv.double(), s.update({"conv.bias": np.ones(4) / 3})),
    "half": lambda m, s: (m.head.half(), s.update({"head.1.bias": np.ones(2, np.float16) / 3})),
    "bfloat16": lambda m, s: (m.head.bfloat16(), s.update({"head.1.bias": zeros(2) + 0.3})),
    "tensor": lambda m, s: s.update({"head.1.bias": torch.ones(2)}),
    "read-only": lambda m, s: s["conv.bias"].setflags(write=False),
    "unaligned": lambda m, s: s.update({"head.1.bias": zeros(3)[1:]}),
    "transposed": lambda m, s: s.update({"head.1.weight": zeros(8, 2).T + 1}),
    "channels last": lambda m, s: m.to(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("case", CONVERTED)
def test_what_is_converted_is_as_copied(case: str) -> None:
    """Arrays that RLlib converts, or that a tensor can not point at, have the same effect."""
    modules = pointing, copying = make(), make()
    states = [state_like(module) for module in modules]
    for module, state in zip(modules, states, strict=True):
        CONVERTED[case](module, state)
    before = facts(pointing)
    moves = plan(pointing, states[0])
    assert moves is not None
    alias(moves)
    copying.set_state(states[1])
    assert facts(pointing) == before
    for (name, mine), (_, theirs) in zip(
        pointing.state_dict().items(), copying.state_dict().items(), strict=True
    ):
        assert mine.data_ptr() % 64 == 0
        assert mine.dtype == theirs.dtype
        assert torch.equal(mine, theirs), name


def test_tensors_of_several_modules_are_copied_into() -> None:
    """Tensors that other modules have, too, are left to whoever knows the order of loading."""
    module = make()
    assert plan(module, state_like(module), shared={id(module.gru.weight_ih_l0)}) is None
    assert plan(module, state_like(module), shared={1}) is not None
