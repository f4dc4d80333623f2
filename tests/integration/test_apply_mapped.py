"""EnvRunners that point at mapped weights are like those that copy them: no cluster is started."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
import tree
from ray.rllib.algorithms.appo import APPOConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.connectors.env_to_module import MeanStdFilter
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModule
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner
from ray.rllib.examples.envs.classes.multi_agent import MultiAgentCartPole

from redis_state_sync.errors import ApplyError
from redis_state_sync.rllib.apply import apply_snapshot
from redis_state_sync.rllib.config import with_redis_state
from redis_state_sync.rllib.env_runners import RedisEnvRunnerMixin, RedisSingleAgentEnvRunner
from redis_state_sync.rllib.states import to_components
from redis_state_sync.snapshot import Snapshot
from tests.integration.held import assert_same
from tests.leases import mappings, snapshot_of, unshared_kb


class Images(gym.Env):  # type: ignore[misc,type-arg]
    """Small images, no task."""

    def __init__(self, config: Any = None) -> None:
        self.observation_space = gym.spaces.Box(0, 1, (12, 12, 3), np.float32)
        self.action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.steps = 0
        return np.full((12, 12, 3), 0.5, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return np.full((12, 12, 3), 0.5, np.float32), 1.0, self.steps > 5, False, {}


def mean_std(env: Any = None, spaces: Any = None, device: Any = None) -> MeanStdFilter:
    return MeanStdFilter()


def single(config: Any, env: Any = "CartPole-v1", **model: Any) -> SingleAgentEnvRunner:
    config = (
        config.environment(env)
        .env_runners(num_env_runners=0, env_to_module_connector=mean_std)
        .rl_module(model_config={"fcnet_hiddens": [32, 32], **model})
    )
    return SingleAgentEnvRunner(config=config, worker_index=1)


def multi(cls: type[MultiAgentEnvRunner] = MultiAgentEnvRunner) -> MultiAgentEnvRunner:
    config = (
        APPOConfig()
        .environment(MultiAgentCartPole, env_config={"num_agents": 2})
        .env_runners(num_env_runners=0)
        .multi_agent(policies={"p0", "p1"}, policy_mapping_fn=lambda aid, *a, **kw: f"p{aid}")
    )
    return cls(config=config, worker_index=1)


RUNNERS: dict[str, Callable[[], Any]] = {
    "ppo": lambda: single(PPOConfig()),
    "appo": lambda: single(APPOConfig(), vf_share_layers=True),
    "lstm": lambda: single(PPOConfig(), use_lstm=True, lstm_cell_size=16, max_seq_len=4),
    "cnn": lambda: single(APPOConfig(), Images, conv_filters=[[4, 4, 2], [8, 3, 2]]),
    "multi": multi,
}
Make = Callable[[str], Any]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[Any] = []

    def _make(kind: str) -> Any:
        made.append(RUNNERS[kind]())
        return made[-1]

    yield _make
    for runner in made:
        runner.stop()


def modules(runner: Any) -> dict[str, Any]:
    module = runner.module
    return dict(module.items()) if isinstance(module, MultiRLModule) else {"default": module}


def tensors(runner: Any) -> dict[str, torch.Tensor]:
    return {
        f"{mid}/{name}": tensor
        for mid, module in modules(runner).items()
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]
    }


def facts(runner: Any) -> list[Any]:
    """What the tensors are, but for their values."""
    return [(n, id(t), t.requires_grad, t.stride()) for n, t in tensors(runner).items()]


def places(runner: Any) -> list[int]:
    """Where the tensors' memory is."""
    return [tensor.data_ptr() for tensor in tensors(runner).values()]


def is_mapped(runner: Any, directory: Path) -> bool:
    """Whether every tensor lies in a file of the directory; they do so all or not at all."""
    maps = mappings(directory)
    inside = {any(t.data_ptr() in m for m in maps) for t in tensors(runner).values()}
    assert len(inside) == 1
    return inside.pop()


def components(runner: Any, number: int) -> dict[str, Any]:
    """What a learner would publish: all parts of a state, with other numbers in them."""
    state = copy.deepcopy(runner.get_state())
    weights = state["rl_module"]
    rng = np.random.default_rng(number)
    for module in weights.values() if "p0" in weights else [weights]:
        for name, value in module.items():
            module[name] = rng.standard_normal(value.shape).astype(np.float32)
    state["num_env_steps_sampled_lifetime"] = 1000 * number
    return to_components(state, multi_agent="p0" in weights)[0]


def apply(runner: Any, snapshot: Snapshot) -> None:
    apply_snapshot(runner, runner.set_state, snapshot)


def outputs(runner: Any) -> list[torch.Tensor]:
    """What the modules make of some observations, and of a state if they have one."""
    found = []
    for module in modules(runner).values():
        space = module.observation_space
        obs = torch.linspace(-1, 1, 6 * int(np.prod(space.shape))).reshape(6, *space.shape)
        batch: dict[str, Any] = {"obs": obs}
        if module.is_stateful():
            initial = module.get_initial_state()
            batch = {
                "obs": obs.reshape(3, 2, *space.shape),
                "state_in": tree.map_structure(
                    lambda v: torch.as_tensor(v).repeat(3, 1, 1), initial
                ),
            }
        for forward in (module.forward_inference, module.forward_exploration):
            found.append(forward(batch)["action_dist_inputs"])
    return found


@pytest.mark.parametrize("kind", RUNNERS)
def test_a_runner_that_points_is_like_one_that_copies(
    kind: str, make: Make, tmp_path: Path
) -> None:
    """Whole states, counters included, and outputs are the same bit for bit, version by version.

    Of what is not mapped, small weights are given memory of their own, and copied into the module's
    where an EnvRunner has a `set_state` of its own.
    """
    pointing, given, copying = make(kind), make(kind), make(kind)
    before = {runner: facts(runner) for runner in (pointing, given)}
    own = {runner: places(runner) for runner in (given, copying)}
    for runner in (given, copying):
        runner.set_state(pointing.get_state())
    for number in (1, 2, 3):
        parts = components(copying, number)
        apply(pointing, snapshot_of(parts, number, directory=tmp_path))
        apply(given, snapshot_of(parts, number))
        apply_snapshot(copying, lambda state: copying.set_state(state), snapshot_of(parts, number))
        assert is_mapped(pointing, tmp_path)
        assert places(copying) == own[copying]
        assert not set(places(given)) & set(own[given])
        for runner in (pointing, given):
            assert facts(runner) == before[runner]
            assert_same(runner.get_state(), copying.get_state())
            assert runner._weights_seq_no == copying._weights_seq_no == 10 * number
            assert runner.num_env_steps_sampled_lifetime == 1000 * number
            for mine, theirs in zip(outputs(runner), outputs(copying), strict=True):
                assert torch.equal(mine, theirs)
        for runner in (pointing, given, copying):
            runner.sample(num_timesteps=20, explore=False)
        assert is_mapped(pointing, tmp_path)


def test_env_runners_of_ours_point(tmp_path: Path) -> None:
    """`RedisSingleAgentEnvRunner` hands on RLlib's own `set_state`, by which weights may move."""
    config = PPOConfig().environment("CartPole-v1").env_runners(num_env_runners=0)
    config = with_redis_state(config, "memory://")
    runner = RedisSingleAgentEnvRunner(config=config, worker_index=0)
    try:
        snapshot = snapshot_of(components(runner, 1), directory=tmp_path)
        apply_snapshot(runner, super(RedisEnvRunnerMixin, runner).set_state, snapshot)
        assert is_mapped(runner, tmp_path)
    finally:
        runner.stop()


@pytest.mark.parametrize("kind", RUNNERS)
def test_runners_of_a_node_have_weights_once(kind: str, make: Make, tmp_path: Path) -> None:
    """Neither applying weights nor sampling with them makes a copy of a single page."""
    runner = make(kind)
    parts = {n: p for n, p in components(runner, 1).items() if n.startswith("rl_module/")}
    apply(runner, snapshot_of(parts, directory=tmp_path))
    runner.sample(num_timesteps=20)
    assert is_mapped(runner, tmp_path)
    assert unshared_kb(tmp_path) == 0
    with torch.no_grad():
        next(iter(tensors(runner).values())).zero_()
    assert unshared_kb(tmp_path) > 0


def test_only_what_changed_moves(make: Make, tmp_path: Path) -> None:
    """A version in which one module changed leaves the other where it is."""
    runner = make("multi")
    parts = components(runner, 1)
    apply(runner, snapshot_of(parts, directory=tmp_path))
    before = {name: t.data_ptr() for name, t in tensors(runner).items()}
    changed = {**components(runner, 2), "rl_module/p0": parts["rl_module/p0"]}
    apply(runner, snapshot_of(changed, 2, directory=tmp_path, changed={"rl_module/p1"}))
    for name, tensor in tensors(runner).items():
        assert (tensor.data_ptr() == before[name]) is name.startswith("p0/")
    assert_same(runner.get_state()["rl_module"]["p1"], changed["rl_module/p1"])


def test_modules_of_both_kinds(make: Make, tmp_path: Path) -> None:
    """Where one module loads in its own way it gets its weights so, and the other points at its."""
    pointing, copying = make("multi"), make("multi")
    copying.set_state(pointing.get_state())
    for runner in (pointing, copying):
        module = runner.module["p0"]
        module.register_load_state_dict_post_hook(lambda m, keys: setattr(m, "told", True))
    for number in (1, 2):
        parts = components(copying, number)
        apply(pointing, snapshot_of(parts, number, directory=tmp_path))
        apply(copying, snapshot_of(parts, number))
        assert pointing.module["p0"].told
        maps = mappings(tmp_path)
        for name, tensor in tensors(pointing).items():
            assert any(tensor.data_ptr() in m for m in maps) is name.startswith("p1/")
        assert_same(pointing.get_state(), copying.get_state())


def test_a_tensor_of_two_modules(make: Make, tmp_path: Path) -> None:
    """Modules that share layers get them in the order in which they would be copied."""
    runner = make("multi")
    runner.module["p1"].encoder = runner.module["p0"].encoder
    parts = components(runner, 1)
    apply(runner, snapshot_of(parts, directory=tmp_path))
    assert mappings(tmp_path) == []
    state = runner.get_state()["rl_module"]
    assert_same(state["p0"]["pi.net.mlp.0.weight"], parts["rl_module/p0"]["pi.net.mlp.0.weight"])
    encoder = {n for n in state["p0"] if n.startswith("encoder.")}
    assert encoder
    for name in encoder:
        assert any(np.array_equal(state["p0"][name], parts[f"rl_module/{p}"][name])
                   for p in ("p0", "p1"))  # fmt: skip


BROKEN: dict[str, Callable[[dict[str, Any]], Any]] = {
    "connector": lambda parts: parts.update(module_to_env_connector=3),
    "shape": lambda parts: parts["rl_module/p1"].update({"pi.net.mlp.0.bias": np.zeros(99)}),
    "name": lambda parts: parts["rl_module/p1"].pop("pi.net.mlp.0.bias"),
    "no dict": lambda parts: parts.update({"rl_module/p1": [1]}),
}


@pytest.mark.parametrize("case", BROKEN)
def test_whole_or_not_at_all(case: str, make: Make, tmp_path: Path) -> None:
    """If one part of a version does not fit, every tensor is where and what it was: C58."""
    runner = make("multi")
    apply(runner, snapshot_of(components(runner, 1), directory=tmp_path))
    before = copy.deepcopy(runner.get_state())
    pointers = {name: t.data_ptr() for name, t in tensors(runner).items()}
    seq_no = runner._weights_seq_no
    parts = components(runner, 2)
    BROKEN[case](parts)
    with pytest.raises(ApplyError):
        apply(runner, snapshot_of(parts, 2, directory=tmp_path))
    assert {name: t.data_ptr() for name, t in tensors(runner).items()} == pointers
    assert_same(runner.get_state(), before)
    assert runner._weights_seq_no == seq_no
    apply(runner, snapshot_of(components(runner, 3), 3, directory=tmp_path))
    assert is_mapped(runner, tmp_path)


@pytest.mark.parametrize("name", ["rl_module/p0", "rl_module/p1", "env_to_module_connector"])
def test_what_can_not_be_mapped(name: str, make: Make, tmp_path: Path) -> None:
    """Where one part of a version can not be mapped, every tensor is where and what it was."""
    runner = make("multi")
    apply(runner, snapshot_of(components(runner, 1), directory=tmp_path))
    before = copy.deepcopy(runner.get_state())
    pointers = {each: t.data_ptr() for each, t in tensors(runner).items()}
    snapshot = snapshot_of(components(runner, 2), 2, directory=tmp_path)
    (tmp_path / f"2-{name.replace('/', '-')}").unlink()
    with pytest.raises(ApplyError, match=f"no room for '{name}'"):
        apply(runner, snapshot)
    assert {each: t.data_ptr() for each, t in tensors(runner).items()} == pointers
    assert_same(runner.get_state(), before)
    apply(runner, snapshot_of(components(runner, 3), 3, directory=tmp_path))
    assert is_mapped(runner, tmp_path)


@pytest.mark.parametrize(("kind", "expected"), [("lstm", 2), ("multi", 2)])
def test_old_mappings_are_let_go(kind: str, expected: int, make: Make, tmp_path: Path) -> None:
    """After 200 versions a runner has a mapping for each module and each filter, and no more."""
    runner = make(kind)
    snapshots = [snapshot_of(components(runner, n), n, directory=tmp_path) for n in (1, 2)]
    for number in range(200):
        apply(runner, snapshots[number % 2])
        assert len(mappings(tmp_path)) == expected


CHILD = """
import sys
from pathlib import Path
from tests.integration.test_apply_mapped import RUNNERS, apply, is_mapped, tensors
from tests.leases import Lease, snapshot_of
import torch
from redis_state_sync.codec import decode
directory = Path(sys.argv[1])
runner = RUNNERS["ppo"]()
parts = {"rl_module/default_policy": decode(Lease(directory / "1-rl_module-default_policy").map(),
                                            guard_packed=False)}
snapshot = snapshot_of(parts, 1)
snapshot._blobs = {n: Lease(directory / "1-rl_module-default_policy") for n in parts}
apply(runner, snapshot)
assert is_mapped(runner, directory)
with torch.no_grad():
    for tensor in tensors(runner).values():
        tensor.fill_(float(sys.argv[2]))
print("written", flush=True)
sys.stdin.readline()
print(*{float(t.min()) for t in tensors(runner).values()}, flush=True)
"""


def test_writing_reaches_no_other_process(make: Make, tmp_path: Path) -> None:
    """What processes write into weights that they point at stays their own: C55."""
    runner = make("ppo")
    parts = {"rl_module/default_policy": components(runner, 1)["rl_module/default_policy"]}
    snapshot = snapshot_of(parts, directory=tmp_path)
    apply(runner, snapshot)
    others = [
        subprocess.Popen(
            [sys.executable, "-c", CHILD, str(tmp_path), number],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in "12"
    ]
    for other in others:
        assert other.stdout is not None
        assert other.stdout.readline() == "written\n"
    assert_same(runner.get_state()["rl_module"], parts["rl_module/default_policy"])
    with torch.no_grad():
        for tensor in tensors(runner).values():
            tensor.fill_(3.0)
    for number, other in zip("12", others, strict=True):
        assert other.communicate("\n", timeout=50)[0] == f"{number}.0\n"
    assert_same(dict(snapshot), parts)


def test_a_state_from_outside(make: Make, tmp_path: Path) -> None:
    """A state that is set, or restored, between two versions is had, and reaches neither."""
    runner, other = make("ppo"), make("ppo")
    parts = components(runner, 1)
    apply(runner, snapshot_of(parts, directory=tmp_path))
    saved = runner.save_to_path(str(tmp_path / "checkpoint"))
    foreign = other.get_state()
    runner.set_state(foreign)
    assert_same(runner.get_state()["rl_module"], foreign["rl_module"])
    assert_same(dict(snapshot_of(parts, directory=tmp_path)), parts)
    runner.restore_from_path(saved)
    assert_same(runner.get_state()["rl_module"], parts["rl_module/default_policy"])
    newer = components(runner, 2)
    apply(runner, snapshot_of(newer, 2, directory=tmp_path))
    assert is_mapped(runner, tmp_path)
    assert_same(runner.get_state()["rl_module"], newer["rl_module/default_policy"])


class NotingRunner(MultiAgentEnvRunner):
    """Looks at the weights that it is given."""

    def set_state(self, state: Any) -> None:
        super().set_state(state)
        self.seen = state["rl_module"]


class NotingModules(MultiRLModule):
    """Looks at the weights that it is given."""

    def set_state(self, state: Any) -> None:
        super().set_state(state)
        self.seen = state


@pytest.mark.parametrize("directory", [True, False], ids=["mapped", "bytes"])
@pytest.mark.parametrize("who", ["runner", "modules"])
def test_code_of_ones_own_gets_the_weights(who: str, directory: bool, tmp_path: Path) -> None:
    """A `set_state` that does more than RLlib's is called with all the weights, to keep."""
    runner = multi(NotingRunner if who == "runner" else MultiAgentEnvRunner)
    try:
        if who == "modules":
            runner.module.__class__ = NotingModules
        parts = components(runner, 1)
        for part in ("p0", "p1"):  # Large enough for a view.
            parts[f"rl_module/{part}"]["unknown"] = np.zeros(1 << 20, np.float32)
        apply(runner, snapshot_of(parts, directory=tmp_path if directory else None))
        seen = (runner if who == "runner" else runner.module).seen
        for part in ("p0", "p1"):
            for array in seen[part].values():
                array += 1
        state = runner.get_state()["rl_module"]
        assert_same(state["p0"], {n: parts["rl_module/p0"][n] for n in state["p0"]})
    finally:
        runner.stop()


def test_large_bytes_are_copied_once(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large weights that are not mapped are loaded from a view, and the bytes stay as they are."""
    runner = make("ppo")
    parts = components(runner, 1)
    parts["rl_module/default_policy"]["unknown"] = np.zeros(1 << 20, np.float32)
    snapshot = snapshot_of(parts)
    decoded: list[str] = []
    look_up = Snapshot.__getitem__
    monkeypatch.setattr(
        Snapshot, "__getitem__", lambda self, name: decoded.append(name) or look_up(self, name)
    )
    apply(runner, snapshot)
    assert "counters" in decoded
    assert "rl_module/default_policy" not in decoded
    with torch.no_grad():
        for tensor in tensors(runner).values():
            tensor += 1
    assert_same(dict(snapshot), parts)
