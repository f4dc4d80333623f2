"""A follower's EnvRunner acts with what is published or not at all. No Ray cluster."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from redis_state_sync import (
    ApplyError,
    FirstVersionError,
    StaleStateError,
    StatePublisher,
    Version,
)
from redis_state_sync.embedded import EmbeddedServer
from redis_state_sync.rllib.follower_sync import agree
from redis_state_sync.rllib.following import logger as following_logger
from tests.integration.held import PATIENT, assert_same, read_runner
from tests.integration.in_flight import WAIT, Flight, assert_honest, stamps
from tests.integration.test_apply import mean_std, observations


@pytest.fixture
def fragile() -> Iterator[EmbeddedServer]:
    """A server that a test may kill."""
    with EmbeddedServer() as running:
        yield running


@pytest.fixture
def follow(fragile: EmbeddedServer) -> Iterator[Any]:
    """Makes EnvRunners of a follower, each with a publisher, and closes them when the test ends."""
    made: list[Flight] = []

    def make(**kwargs: Any) -> Flight:
        settings = {"first_version_timeout_s": 0.2, "every": 10**9, **PATIENT, **kwargs}
        made.append(Flight(fragile.url, role="follower", **settings))
        return made[-1]

    yield make
    for flight in made:
        flight.close()


def weights_of(flight: Flight, agent: str | None = None) -> dict[str, Any]:
    return dict(read_runner(flight.runner)[f"rl_module/{agent or 'default_policy'}"])


def filter_state(seed: int) -> dict[str, Any]:
    """The state of a filter that has seen a hundred observations."""
    rng = np.random.default_rng(seed)
    box, two = gym.spaces.Box(-10, 10, (4,), np.float32), gym.spaces.Discrete(2)
    made = mean_std()
    made.input_action_space, made.input_observation_space = two, box
    made.get_state()  # It makes its filters when they are first needed.
    for _ in range(100):
        made._filters[None](rng.normal(seed, 2, 4))
    return {"MeanStdFilter": made.get_state()}


@pytest.mark.parametrize("worker_index", [0, 1])
@pytest.mark.parametrize("multi_agent", [False, True])
def test_acts_with_what_is_published(follow: Any, multi_agent: bool, worker_index: int) -> None:
    """Remote or local, for one agent or two, each step is by the newest published weights."""
    flight = follow(multi_agent=multi_agent, worker_index=worker_index)
    for number in (1, 2):
        flight.publish()
        episodes = flight.sample(60)
        assert assert_honest(flight, episodes) >= 60
        agent = "often" if multi_agent else None
        assert {n for s in stamps(episodes, agent) for n in s.tolist()} == {number}
        assert_same(weights_of(flight, agent), flight.versions[number][agent])
    reader = flight.publisher.store.readers(flight.publisher.keys, timeout=5)
    (name,) = reader
    assert name.endswith(f":follower_env_runner_{worker_index}")


def test_filter_is_the_published_one(follow: Any) -> None:
    """Each `sample()` begins with the published filter, bit for bit, whatever it saw before."""
    flight = follow(connector=mean_std)
    flight.publish(env_to_module_connector=filter_state(1))
    begins: list[Any] = []
    flight.on_step = lambda runner: begins.append(observations(runner._env_to_module.get_state()))
    for _ in range(3):
        flight.sample(30)
        flight.runner.refresh_redis_state()
        assert_same(read_runner(flight.runner)["env_to_module_connector"], filter_state(1))
        assert begins[0] in (101, 102)
        assert begins[-1] > begins[0]  # It went on collecting meanwhile, as RLlib's do.
        begins.clear()
    flight.publish(env_to_module_connector=filter_state(2))
    flight.runner.refresh_redis_state()
    assert_same(read_runner(flight.runner)["env_to_module_connector"], filter_state(2))


def test_what_rllib_sends_is_dropped(follow: Any) -> None:
    """A state by `set_state`, as RLlib sends its random Learner's, changes nothing."""
    flight = follow(connector=mean_std)
    random = copy.deepcopy(flight.runner.get_state())
    flight.publish(env_to_module_connector=filter_state(1))
    flight.sample(10)
    flight.runner.refresh_redis_state()
    before = read_runner(flight.runner)
    flight.runner.set_state({**random, "weights_seq_no": 0})
    flight.runner.set_state({**random, "weights_seq_no": 10**6})
    assert_same(read_runner(flight.runner), before)


def test_no_version_is_an_error(follow: Any) -> None:
    """Without a version `sample()` raises, naming namespace, store, limit and remedy; not for ever:
    one that comes later is acted with.
    """
    flight = follow()
    for _ in range(2):
        with pytest.raises(FirstVersionError) as raised:
            flight.sample(5)
        text = str(raised.value)
        for part in (flight.namespace, "unix://", "first_version_timeout_s", "doctor"):
            assert part in text
    assert flight.runner.num_env_steps_sampled_lifetime == 0
    flight.publish()
    assert assert_honest(flight, flight.sample(20)) >= 20


def test_waits_for_the_first_version(
    follow: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An EnvRunner that was there first waits, says so once, and acts when something is there."""
    monkeypatch.setattr(following_logger, "propagate", True)
    flight = follow(first_version_timeout_s=60.0)

    def said() -> list[str]:
        return [text for text in caplog.messages if "waits up to 60 s" in text]

    with caplog.at_level("INFO", logger=following_logger.name):
        sampled: list[Any] = []
        thread = threading.Thread(target=lambda: sampled.extend(flight.sample(20)))
        thread.start()
        while not said():
            assert thread.is_alive()
        flight.publish()
        thread.join(WAIT)
    assert assert_honest(flight, sampled) >= 20
    assert len(said()) == 1


def test_a_restart_while_the_store_is_down(follow: Any, fragile: EmbeddedServer) -> None:
    """One that has a version goes on without the store; one with random weights does not act."""
    flight = follow()
    flight.publish()
    flight.sample(10)
    fragile.kill()
    before = weights_of(flight)
    for _ in range(3):
        assert assert_honest(flight, flight.sample(10)) >= 10
    assert_same(weights_of(flight), before)
    flight.runner.make_module()  # As new as that of a restarted EnvRunner.
    steps = flight.runner.num_env_steps_sampled_lifetime
    with pytest.raises(FirstVersionError, match=r"did not answer.*doctor"):
        flight.sample(10)
    assert flight.runner.num_env_steps_sampled_lifetime == steps


def test_modules_made_anew_get_their_weights(follow: Any) -> None:
    """A module that was made anew acts with the version that its predecessor had."""
    flight = follow()
    flight.publish()
    flight.sample(10)
    flight.runner.make_module()
    assert assert_honest(flight, flight.sample(20)) >= 20
    assert_same(weights_of(flight), flight.versions[1][None])


def _publish(flight: Flight, components: dict[str, Any]) -> None:
    flight.publisher.publish(components, weights_seq_no=1).wait(WAIT)


def _cut(state: dict[str, Any]) -> dict[str, Any]:
    return {name: value[:1] for name, value in state.items()}


MISFITS = {
    "another module": lambda s: {"rl_module/p7": s},
    "another shape": lambda s: {"rl_module/default_policy": _cut(s)},
    "a parameter less": lambda s: {"rl_module/default_policy": dict(list(s.items())[1:])},
    "a layer more": lambda s: {"rl_module/default_policy": {**s, "pi.more.weight": np.ones(3)}},
    "a filter more": lambda s: {
        "rl_module/default_policy": s,
        "env_to_module_connector": filter_state(1),
    },
}


@pytest.mark.parametrize("misfit", MISFITS)
def test_what_does_not_fit_is_an_error(follow: Any, misfit: str) -> None:
    """A first version that is not wholly this EnvRunner's is refused with an error each time, and
    nothing acts; a later one that fits is taken.
    """
    flight = follow(first_version_timeout_s=60.0)
    _publish(flight, MISFITS[misfit](flight.state()[None]))
    before = read_runner(flight.runner)
    for _ in range(2):
        with pytest.raises(ApplyError, match=r"those of the learner|is the architecture the same"):
            flight.sample(5)
    assert_same(read_runner(flight.runner), before)
    flight.publisher.publish(
        {
            "rl_module/default_policy": flight.state()[None],
            "env_to_module_connector": {},
        },
        remove=["rl_module/p7"] if misfit == "another module" else [],
    ).wait(WAIT)
    flight.sample(5)
    assert flight.runner.redis_state_version == flight.publisher.last_version


def test_a_filter_without_a_published_state(follow: Any) -> None:
    """An EnvRunner whose filter has no published state would normalise by itself: refused."""
    flight = follow(connector=mean_std)
    flight.publish()
    with pytest.raises(ApplyError, match=r"published state lacks \['MeanStdFilter'\]"):
        flight.sample(5)


def test_a_misfit_later_keeps_the_version(follow: Any) -> None:
    """With a version at hand, one that does not fit is passed over: the old one goes on acting."""
    flight = follow()
    flight.publish()
    flight.sample(5)
    held = flight.runner.redis_state_version
    state = flight.state()[None]
    for misfit in MISFITS.values():
        other = StatePublisher(flight.publisher.store, flight.namespace)
        other.publish(misfit(state)).wait(WAIT)
        assert assert_honest(flight, flight.sample(10)) >= 10
        assert flight.runner.redis_state_version == held
        other.close()


def test_follows_every_learner(follow: Any) -> None:
    """Whoever takes over is followed, although its `WEIGHTS_SEQ_NO` begins anew."""
    flight = follow()
    for _ in range(3):
        flight.publish()
    flight.sample(5)
    first = flight.runner.redis_state_version
    successor = StatePublisher(flight.publisher.store, flight.namespace, writer_id="another")
    state = flight.state()[None]
    successor.publish({"rl_module/default_policy": state}, weights_seq_no=1).wait(WAIT)
    flight.sample(5)
    assert flight.runner.redis_state_version == successor.last_version > first
    assert_same(weights_of(flight), state)
    successor.close()


def test_keeps_a_version_while_it_is_told_to(follow: Any) -> None:
    """Between `keep` and `release` the version stays, and `release` says which ones acted."""
    flight = follow()
    following = flight.runner._redis_state_following
    flight.publish()
    flight.sample(5)
    flight.publish()
    flight.runner.refresh_redis_state()
    second = flight.runner.redis_state_version
    following.keep()
    flight.publish()
    for _ in range(2):
        flight.sample(5)
        assert flight.runner.redis_state_version == second
    assert following.release() == [second]
    flight.sample(5)
    assert following.release() == [flight.publisher.last_version]


@pytest.mark.parametrize("worker_index", [0, 1])
def test_in_flight(follow: Any, worker_index: int) -> None:
    """Weights may change within a `sample()`, with any algorithm: each step says truly which ones
    acted.
    """
    flight = follow(
        worker_index=worker_index, refresh="steps", refresh_every_s=1e-6, prefetch=False, every=4
    )
    flight.publish()
    episodes = flight.sample(80)
    assert assert_honest(flight, episodes) >= 80
    assert len({n for s in stamps(episodes) for n in s.tolist()}) >= 4


def test_limits_of_staleness(follow: Any) -> None:
    """A follower may refuse to act with what is too old, as any EnvRunner: the local one, too."""
    flight = follow(worker_index=0, max_staleness_s=0.2)
    flight.publish()
    flight.sample(5)
    time.sleep(0.3)
    with pytest.raises(StaleStateError, match="is a learner publishing there"):
        flight.sample(1)


def test_model_of_another_width(follow: Any) -> None:
    """A follower whose config has other layers is told which parameter differs."""
    flight = follow(hidden=8)
    other = Flight(
        flight.runner.config.redis_state_settings.url,
        hidden=16,
        role="follower",
        first_version_timeout_s=0.2,
    )
    try:
        _publish(flight, {"rl_module/default_policy": other.state()[None]})
        with pytest.raises(ApplyError, match=r"encoder.*is the architecture the same"):
            flight.sample(5)
    finally:
        other.close()


class Told:
    """Stands for an EnvRunner: each time that it looks, the next of these versions is there."""

    def __init__(self, *numbers: int) -> None:
        self._offers = [Version(1, number) for number in numbers]
        self.redis_state_version: Version | None = None
        self.keeps = False
        self._redis_state_following = self

    def refresh_redis_state(self, *, limits: bool) -> None:
        assert limits
        assert not self.keeps
        self.redis_state_version = self._offers.pop(0)

    def keep(self) -> None:
        self.keeps = True

    def release(self) -> list[Version]:
        self.keeps = False
        return []


def test_env_runners_agree() -> None:
    """While versions come, those who are behind look again until all have the same one, and keep
    it; whoever is not behind does not look. For ever they do not try.
    """
    runners = [Told(1, 3), Told(2, 3), Told(3)]
    agree(lambda function: [function(runner) for runner in runners])
    assert {runner.redis_state_version for runner in runners} == {Version(1, 3)}
    assert all(runner.keeps for runner in runners)
    restless = [Told(*range(1, 100, 2)), Told(*range(2, 100, 2))]
    agree(lambda function: [function(runner) for runner in restless])
    assert len({runner.redis_state_version for runner in restless}) == 2
    assert all(runner.keeps for runner in restless)
