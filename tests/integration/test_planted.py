"""Someone who can write to the store plants states that run code in RLlib's hands: nothing runs.

They can still plant well-formed weights: only a signature tells these from the learner's.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.connectors.env_to_module import MeanStdFilter
from ray.rllib.utils.serialization import _deserialize_ndarray

from redis_state_sync import StateSubscriber, open_store
from redis_state_sync.codec import decode, encode
from redis_state_sync.embedded import EmbeddedServer
from redis_state_sync.errors import DecodeError
from redis_state_sync.rllib import with_redis_state
from redis_state_sync.rllib.apply import apply_snapshot
from tests.integration.held import assert_runners_hold, assert_same, published
from tests.integration.planted import (
    blob_of,
    crafted,
    disguises,
    forged_text,
    harmless,
    newest_manifest,
    placed,
    plant,
    trap,
    with_packed_replaced,
)
from tests.integration.test_apply import Job

FILTERS = "env_to_module_connector"
WEIGHTS = "rl_module/default_policy"
RUNNERS = 2


def mean_std(env: Any = None, spaces: Any = None, device: Any = None) -> MeanStdFilter:
    return MeanStdFilter()


def look_and_sample(runner: Any) -> dict[str, Any]:
    """Runs in an EnvRunner: looks at the store once, though it failed just now, and samples."""
    subscriber = runner._redis_state_subscriber
    while not subscriber._arrivals.cooldown.ready(time.monotonic()):
        time.sleep(0.01)
    before = runner.redis_state_version
    episodes = runner.sample(num_timesteps=20)
    return {
        "steps": sum(len(episode) for episode in episodes),
        "before": before,
        "version": runner.redis_state_version,
        "failures": subscriber._arrivals.cooldown.failures,
    }


def loads_directly(text: str) -> Any:
    """Runs in an EnvRunner: what RLlib would do with the text, were it let through."""

    def load(runner: Any) -> str:
        try:
            _deserialize_ndarray(text)
        except Exception as error:
            return type(error).__name__
        return "loaded"

    return load


class Attack:
    """A running algorithm, and a client of the store's that has no right to be there."""

    def __init__(self, algo: Any, url: str, marker: Path) -> None:
        self.algo = algo
        self.store = open_store(url)
        self.keys = algo.redis_state_sync.publisher.keys
        self.marker = marker
        self.text = forged_text(marker)
        self.failures = 0

    def looks(self) -> list[dict[str, Any]]:
        found = self.algo.env_runner_group.foreach_env_runner(
            look_and_sample, local_env_runner=False
        )
        assert len(found) == RUNNERS
        return found

    def in_vain(self, name: str) -> None:
        """The EnvRunners looked, kept what they had, sampled, and nothing ran."""
        for found in self.looks():
            assert found["version"] == found["before"], f"{name} was applied"
            assert found["steps"] >= 20
        self.failures += 1
        self.elsewhere(name)
        assert not self.marker.exists(), f"{name} ran"
        self.learner_goes_on()

    def elsewhere(self, name: str) -> None:
        """A reader without RLlib looks at every component."""
        snapshot = StateSubscriber(self.store, self.keys.namespace).fetch(timeout=20)
        assert snapshot is not None
        for component in snapshot:
            try:
                snapshot[component]
            except DecodeError:
                pass

    def learner_goes_on(self) -> None:
        """The learner's next versions are applied."""
        publisher = self.algo.redis_state_sync.publisher
        for _ in range(2):  # The first has the number that was planted.
            stored = publisher.publish({"extra/again": self.failures}).wait(20)
        for found in self.looks():
            assert found["version"] == stored


@pytest.fixture
def attack(server: EmbeddedServer, build: Any, tmp_path: Path) -> Attack:
    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(
            num_env_runners=RUNNERS,
            rollout_fragment_length=50,
            env_to_module_connector=mean_std,
        )
        .training(train_batch_size_per_learner=100, minibatch_size=50, num_epochs=1)
    )
    algo = build(with_redis_state(config, server.url))
    algo.train()
    return Attack(algo, server.url, tmp_path / "ran")


def test_planted_states_run_nothing(attack: Attack, tmp_path: Path) -> None:
    """Pickles in any disguise, forged under the real learner's name, never run: C48, C58."""
    algo, store, keys, text = attack.algo, attack.store, attack.keys, attack.text
    filters = blob_of(store, keys, FILTERS)
    forged = with_packed_replaced(filters, text, "")
    # (a) A filter's arrays as texts or buffers that RLlib would unpickle, and (b) a pickle as it
    # is. In weights texts are not looked at. All disguises: see the test below.
    hidden = with_packed_replaced(filters, disguises(attack.marker)["array of bytes"], text)
    for name, component, blob in [
        ("text", FILTERS, forged),
        ("array", FILTERS, hidden),
        ("pickle", FILTERS, trap(attack.marker)),
        ("pickle as weights", WEIGHTS, trap(attack.marker)),
        ("text as weights", WEIGHTS, crafted(["d", ["pi.weight", text]])),
        ("counters that stand in", "counters", harmless({FILTERS: {}, "rl_module": {}})),
    ]:
        plant(store, keys, lambda c, b=blob, n=component: b if c == n else None)
        attack.in_vain(name)

    # (c) A blob replaced under the name that the learner gave it, before it is fetched.
    publisher = algo.redis_state_sync.publisher
    state = decode(filters)
    state["MeanStdFilter"][None]["clip_by_value"] = 9.0
    publisher.publish({FILTERS: state}).wait(20)
    honest = blob_of(store, keys, FILTERS)
    (piece,) = newest_manifest(store, keys).components[FILTERS].pieces
    for bad in (trap(attack.marker).ljust(piece.size, b"\0"), forged.ljust(5 << 20, b"\0")):
        store.put_blobs(keys, {piece.digest: bad}, ttl_s=600, timeout=20)
        for found in attack.looks():
            assert found["version"] == found["before"]
            assert found["failures"] > 0
    assert not attack.marker.exists()
    store.put_blobs(keys, {piece.digest: honest}, ttl_s=600, timeout=20)
    for found in attack.looks():
        assert found["version"] == publisher.last_version

    # Training goes on, and every failure was counted.
    result = algo.train()
    failures = result["env_runners"]["redis_state"]["num_failures_lifetime"]
    assert failures["codec"] >= 4 * RUNNERS
    assert failures["apply"] >= RUNNERS
    assert failures["integrity"] >= RUNNERS
    assert failures["protocol"] >= RUNNERS
    assert result["fault_tolerance"]["num_remote_worker_restarts"] == 0
    assert_runners_hold(algo.env_runner_group, published(algo), expected=RUNNERS)
    assert not attack.marker.exists()

    # The control: the same text in RLlib's own hands does run, in the same EnvRunners.
    control = tmp_path / "control"
    algo.env_runner_group.foreach_env_runner(
        loads_directly(forged_text(control)), local_env_runner=False
    )
    assert control.exists()


@pytest.fixture(scope="module")
def job() -> Iterator[Job]:
    made = Job(1)
    made.publish(made.runners[0].get_state())
    made.refresh()
    yield made
    made.close()


NAMES = [name for name in disguises(Path("x")) if name != "packed text"]


@pytest.mark.parametrize("name", NAMES)
def test_every_disguise(job: Job, tmp_path: Path, name: str) -> None:
    """However a pickle is disguised that RLlib would load, the EnvRunner keeps all it has: C48."""
    store, keys = job.publisher.store, job.publisher.keys
    (runner,), (subscriber,) = job.runners, job.subscribers
    held = subscriber.held
    before = runner.get_state()
    forged = with_packed_replaced(
        blob_of(store, keys, FILTERS),
        disguises(tmp_path / "ran")[name],
        forged_text(tmp_path / "ran"),
    )
    plant(store, keys, lambda c: forged if c == FILTERS else None)
    subscriber._arrivals.cooldown = type(subscriber._arrivals.cooldown)()
    assert subscriber.refresh(lambda s: apply_snapshot(runner, runner.set_state, s)) is None
    assert subscriber.held == held
    assert_same(runner.get_state(), before)
    assert not (tmp_path / "ran").exists()
    # As it is, not looked at by us, RLlib does run it.
    control = tmp_path / "control"
    whole = crafted(placed(disguises(control)[name], 0), forged_text(control).encode())
    with pytest.raises(Exception):  # noqa: B017, PT011 - what it makes is no array
        _ = _deserialize_ndarray(decode(whole, guard_packed=False)).shape[99]
    assert control.exists()
    for _ in range(2):  # The first has the number that was planted.
        job.publish({"num_env_steps_sampled_lifetime": 5})
    job.refresh()


@pytest.mark.parametrize(
    ("component", "tree"),
    [
        ("counters", 5),
        ("counters", []),
        ("counters", {"num_env_steps_sampled_lifetime": "x"}),
        ("counters", {"num_env_steps_sampled_lifetime": -1}),
        ("counters", {"num_env_steps_sampled_lifetime": float("nan")}),
        ("counters", {"num_env_steps_sampled_lifetime": 2**200}),
        ("counters", {"num_env_steps_sampled_lifetime": {}}),
        ("counters", {"env_to_module_connector": {}}),
        ("counters", {"weights_seq_no": 10**9}),
        ("counters", {"rl_module": 5}),
        ("extra/rl_module", 5),
        ("extra/weights_seq_no", 10**9),
        ("extra/env_to_module_connector", {"MeanStdFilter": {}}),
        ("extra/num_env_steps_sampled_lifetime", "x"),
        (WEIGHTS, 5),
        (WEIGHTS, {}),
        (WEIGHTS, {"x": 5}),
        (WEIGHTS, ["x"]),
        (FILTERS, 5),
        (FILTERS, {"MeanStdFilter": 5}),
        (FILTERS, {"MeanStdFilter": {None: {}}}),
        (FILTERS, {"MeanStdFilter": {None: {"shape": 5, "de_mean_to_zero": 1}}}),
        (FILTERS, {"MeanStdFilter": {"nobody": {}}}),
    ],
    ids=str,
)
def test_what_fits_no_env_runner(job: Job, component: str, tree: Any) -> None:
    """Well-formed states of the wrong kind are rejected whole, and reach no other part: C6, C58."""
    store, keys = job.publisher.store, job.publisher.keys
    (runner,), (subscriber,) = job.runners, job.subscribers
    held, before = subscriber.held, runner.get_state()
    data = bytes(encode(tree))
    plant(store, keys, lambda c: data if c == component else None, add=component)
    subscriber._arrivals.cooldown = type(subscriber._arrivals.cooldown)()
    assert subscriber.refresh(lambda s: apply_snapshot(runner, runner.set_state, s)) is None
    assert subscriber.held == held
    assert_same(runner.get_state(), before)
    runner.sample(num_timesteps=5)
    for _ in range(2):
        job.publish({"num_env_steps_sampled_lifetime": 5})
    job.refresh()
