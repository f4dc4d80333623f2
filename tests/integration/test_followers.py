"""Followers: Algorithms that act with what another one publishes, and change nothing of it."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import ray
from ray.rllib.algorithms.appo import APPOConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

from redis_state_sync import (
    ApplyError,
    FirstVersionError,
    SettingsError,
    StalePublisherError,
    StatePublisher,
    StateSubscriber,
    open_store,
)
from redis_state_sync.embedded import EmbeddedServer
from redis_state_sync.errors import StoreAuthError
from redis_state_sync.keys import Keys
from redis_state_sync.rllib import with_redis_state
from redis_state_sync.rllib.following import logger as following_logger
from tests.deploy.server import PASSWORDS, Server, find_server, render_acl
from tests.integration.held import (
    PATIENT,
    assert_runners_hold,
    assert_same,
    held,
    published,
    read_runner,
)
from tests.integration.in_flight import WAIT, TakingTurns
from tests.integration.test_apply import mean_std


@pytest.fixture
def fragile() -> Iterator[EmbeddedServer]:
    """A server that a test may kill."""
    with EmbeddedServer() as running:
        yield running


def ppo(*, runners: int = 1, connector: Any = None, hidden: int = 16, **env_runners: Any) -> Any:
    return (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(
            num_env_runners=runners,
            rollout_fragment_length=50,
            env_to_module_connector=connector,
            **env_runners,
        )
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[hidden]))
        .training(train_batch_size_per_learner=100, minibatch_size=50, num_epochs=1)
    )


def evaluating(config: Any, runners: int) -> Any:
    return config.evaluation(
        evaluation_interval=1,
        evaluation_num_env_runners=runners,
        evaluation_duration=4,
        evaluation_config={"explore": False},
    )


def following(config: Any, url: str, namespace: str, **settings: Any) -> Any:
    return with_redis_state(
        config, url, namespace=namespace, role="follower", **{**PATIENT, **settings}
    )


def state_of(config: Any) -> dict[str, Any]:
    """The state of a module as this config's, with weights of its own."""
    spec = config.get_rl_module_spec(env=gym.make("CartPole-v1"), inference_only=True)
    return dict(spec.build().get_state())


def entries(url: str, namespace: str) -> list[tuple[Any, bytes]]:
    """Every record of a namespace, as the server has it."""
    store = open_store(url)
    found = store.newest(Keys(namespace), count=1000, timeout=5)
    store.close()
    return [(entry.version, bytes(entry.manifest)) for entry in found]


def readers(url: str, namespace: str) -> list[str]:
    store = open_store(url)
    names = store.readers(Keys(namespace), timeout=5)
    store.close()
    return sorted(name.rpartition(":")[2] for name in names)


def test_follows_and_changes_nothing(server: EmbeddedServer, build: Any) -> None:
    """All EnvRunners of a follower act with just the published weights and filter; what it
    evaluates is the newest version, and named; it goes on when the learner ends, follows the next;
    and of all this the server's records know nothing.
    """
    url, name = server.url, "followed"
    learner = build(with_redis_state(ppo(connector=mean_std), url, namespace=name, **PATIENT))
    learner.train()
    state, before = published(learner), entries(url, name)

    follower = build(following(evaluating(ppo(connector=mean_std), 2), url, name))
    groups = follower.env_runner_group, follower.eval_env_runner_group
    assert_runners_hold(groups[0], state, expected=1)
    assert_runners_hold(groups[1], state, expected=2)
    for _ in range(2):
        result = follower.evaluate()
        version = str(state["version"])
        assert result["redis_state"] == {
            "version": version,
            "versions": [version],
            "namespace": name,
        }
        assert result["env_runners"]["num_episodes"] >= 4
    # Also when it has just collected observations of its own, a filter begins as published.
    groups[1].foreach_env_runner(lambda r: r.refresh_redis_state(), local_env_runner=False)
    assert_runners_hold(groups[1], state, expected=2)
    assert entries(url, name) == before
    # A local EnvRunner that nobody uses is no reader, and would be the stalest of them.
    acting = ["env_runner_1", "eval_env_runner_1", "eval_env_runner_2"]
    assert [n for n in readers(url, name) if "follower" in n] == [f"follower_{n}" for n in acting]
    module = dict(follower.get_module().get_state())
    local = read_runner(follower.env_runner)
    for key in ("version", "rl_module/default_policy", "env_to_module_connector"):
        expected = state[key]
        if key.startswith("rl_module"):
            expected = {k: expected[k] for k in local[key]}
        assert_same(local[key], expected)
    assert_same(module, local["rl_module/default_policy"])
    assert "follower_env_runner_0" in readers(url, name)

    learner.train()
    newer = published(learner)
    assert follower.evaluate()["redis_state"]["versions"] == [str(newer["version"])]
    learner.stop()
    assert follower.evaluate()["redis_state"]["versions"] == [str(newer["version"])]
    successor = build(with_redis_state(ppo(connector=mean_std), url, namespace=name))
    newest = published(successor)
    assert newest["version"].generation > newer["version"].generation
    before = entries(url, name)
    assert follower.evaluate()["redis_state"]["versions"] == [str(newest["version"])]
    assert_runners_hold(groups[0], state, expected=1)  # It was not asked to sample since.
    follower.stop()
    assert entries(url, name) == before
    successor.train()  # Nobody took over from it.


def test_is_no_learner(server: EmbeddedServer, build: Any, tmp_path: Path) -> None:
    """What would train, save or hand out the random Learner of a follower is refused with what to
    do instead, for an asynchronous algorithm as well; sampling jobs get episodes.
    """
    config = (
        APPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=1, rollout_fragment_length=50)
        .learners(num_learners=2)
    )
    store = open_store(server.url)
    publisher = StatePublisher(store, "sampled")
    publisher.publish({"rl_module/default_policy": state_of(config)}).wait(WAIT)
    follower = build(following(config, server.url, "sampled"))
    for call, says in (
        (follower.train, r"train\(\) is not for a follower.*'sampled'.*evaluate\(\)"),
        (follower.training_step, "leave out role='follower'"),
        (lambda: follower.save_to_path(tmp_path / "c"), r"save_to_path.*random weights"),
        (lambda: follower.save(str(tmp_path / "d")), r"save_to_path.*random weights"),
        (lambda: follower.restore_from_path(tmp_path), "restore_from_path"),
        (follower.get_state, "get_state"),
        (lambda: follower.set_state({}), "set_state"),
        (follower.get_weights, r"get_module\(\)"),
    ):
        with pytest.raises(SettingsError, match=says):
            call()
    assert not list(tmp_path.glob("c/*"))
    ((episodes, version),) = follower.env_runner_group.foreach_env_runner(
        _sample, local_env_runner=False
    )
    assert sum(map(len, episodes)) >= 50
    assert version == publisher.last_version
    publisher.close()


def _sample(runner: Any) -> Any:
    return runner.sample(num_timesteps=50), runner.redis_state_version


@pytest.mark.parametrize(
    "config",
    [
        ppo(runners=0),
        ppo(create_local_env_runner=False),
    ],
    ids=["local only", "remote only"],
)
def test_nothing_published(server: EmbeddedServer, ray_session: None, config: Any) -> None:
    """A follower that finds nothing gives up after the time that it was given, with the namespace,
    the server and the remedy in the error, and leaves nothing behind on the server.
    """
    url = server.url
    with pytest.raises(FirstVersionError) as raised:
        following(config, url, "nowhere", first_version_timeout_s=0.3).build_algo()
    for part in ("'nowhere'", "unix://", "first_version_timeout_s", "start the learner"):
        assert part in str(raised.value)
    assert entries(url, "nowhere") == []


def test_a_state_of_another_model(server: EmbeddedServer, ray_session: None) -> None:
    """A follower whose modules are not the learner's is not built; it does not wait in vain."""
    publisher = StatePublisher(open_store(server.url), "wide")
    publisher.publish({"rl_module/default_policy": state_of(ppo(hidden=32))}).wait(WAIT)
    with pytest.raises(ApplyError, match="is the architecture the same"):
        following(ppo(), server.url, "wide").build_algo()
    publisher.close()


class Said(logging.Handler):
    """Notices that a follower waits."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if "waits up to" in record.getMessage():
            self.waits.set()


def test_started_first(
    fragile: EmbeddedServer, build: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A follower that is there before the learner, and even before the server, is built as soon
    as something is published; with several agents, and no EnvRunner but the local ones.
    """
    config = evaluating(ppo(runners=0), 0).environment(TakingTurns)
    config.multi_agent(policies={"often", "seldom"}, policy_mapping_fn=lambda agent, *a, **k: agent)
    space = gym.spaces.Box(-10, 10, (4,), np.float32), gym.spaces.Discrete(2)
    spec = config.get_multi_rl_module_spec(
        spaces={"often": space, "seldom": space}, inference_only=True
    )
    state = dict(spec.build().get_state())
    fragile.kill()
    said = Said()
    made: list[StatePublisher] = []

    def learn() -> None:
        if said.waits.wait(120):
            fragile.start()
            made.append(StatePublisher(open_store(fragile.url), "late"))
            components = {f"rl_module/{mid}": weights for mid, weights in state.items()}
            made[0].publish(components, weights_seq_no=7).wait(WAIT)

    caplog.set_level("INFO", logger=following_logger.name)  # Ray's own is at WARNING here.
    following_logger.addHandler(said)
    thread = threading.Thread(target=learn)
    thread.start()
    try:
        follower = build(following(config, fragile.url, "late", first_version_timeout_s=60.0))
    finally:
        following_logger.removeHandler(said)
        thread.join(WAIT)
    for runner in (follower.env_runner, follower.eval_env_runner):
        got = read_runner(runner)
        assert got["version"] == made[0].last_version
        for mid, weights in state.items():
            assert_same(got[f"rl_module/{mid}"], {k: np.asarray(v) for k, v in weights.items()})
    assert follower.evaluate()["redis_state"]["version"] == str(made[0].last_version)
    made[0].close()


def test_killed_while_the_store_is_down(fragile: EmbeddedServer, build: Any) -> None:
    """Without the store, EnvRunners go on with what they have, and one that is restarted does not
    act; once the store is back with a state, it does.
    """
    config = evaluating(ppo(), 1).fault_tolerance(
        restart_failed_env_runners=True, delay_between_env_runner_restarts_s=0.0
    )
    publisher = StatePublisher(open_store(fragile.url), "fragile")
    weights = state_of(config)
    publisher.publish({"rl_module/default_policy": weights}).wait(WAIT)
    follower = build(following(config, fragile.url, "fragile", first_version_timeout_s=0.5))
    first = str(publisher.last_version)
    fragile.kill()
    assert follower.evaluate()["redis_state"]["versions"] == [first]
    actor = follower.env_runner_group._worker_manager.actors()[1]
    ray.kill(actor, no_restart=False)
    deadline = time.monotonic() + 60
    outcome = _outcome(actor, deadline)
    assert isinstance(outcome, str), outcome
    assert "did not answer" in outcome
    fragile.start()
    publisher.publish({"rl_module/default_policy": weights}).wait(WAIT)
    # Its polls have failed, so the next ones are put off for a while: more than its half a second.
    while isinstance(outcome := _outcome(actor, deadline), str):
        assert time.monotonic() < deadline, outcome
    episodes, version = outcome
    assert sum(map(len, episodes)) >= 50
    assert version >= publisher.last_version
    # That for evaluation, killed while nobody looks, is there again for the next one but one.
    ray.kill(follower.eval_env_runner_group._worker_manager.actors()[1], no_restart=False)
    while True:
        result = follower.evaluate()
        if result["redis_state"]["versions"]:
            break
        assert time.monotonic() < deadline
    assert result["redis_state"]["versions"] == [str(publisher.last_version)]
    publisher.close()


def _outcome(actor: Any, deadline: float) -> Any:
    """What an EnvRunner sampled, or why it did not, as soon as Ray has it again."""
    while True:
        try:
            return ray.get(actor.apply.remote(_try_to_sample))
        except ray.exceptions.RayError:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def _try_to_sample(runner: Any) -> Any:
    try:
        return _sample(runner)
    except FirstVersionError as error:
        return str(error)


def test_rights_of_a_runner(tmp_path: Path, build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user `runner` of deploy/redis/users.acl may do all that a follower does; with a wrong
    password it is not built, and does not wait.
    """
    binary, version = find_server("valkey")
    acl = render_acl(tmp_path / "users.acl", version)
    guarded = Server(binary, tmp_path, "--aclfile", str(acl)).start()
    try:
        monkeypatch.setenv("LEARNER_PASSWORD", PASSWORDS["learner"])
        store = open_store(f"unix://learner@{guarded.socket}", password_env="LEARNER_PASSWORD")
        publisher = StatePublisher(store, "guarded")
        config = evaluating(ppo(runners=0), 0)
        publisher.publish({"rl_module/default_policy": state_of(config)}).wait(WAIT)
        url = f"unix://runner@{guarded.socket}"
        monkeypatch.setenv("REDIS_STATE_SYNC_PASSWORD", PASSWORDS["runner"])
        follower = build(following(config, url, "guarded"))
        found = follower.evaluate()["redis_state"]
        assert found["version"] == str(publisher.last_version)
        names = store.readers(publisher.keys, timeout=5)
        assert len(names) == 2
        monkeypatch.setenv("REDIS_STATE_SYNC_PASSWORD", "wrong")
        with pytest.raises(StoreAuthError):
            following(evaluating(ppo(runners=0), 0), url, "guarded").build_algo()
        publisher.close()
    finally:
        guarded.close()


def test_in_one_process(build: Any) -> None:
    """With memory://, a test may have learner and follower in one process."""
    build(with_redis_state(ppo(runners=0), "memory://followed", namespace="m"))
    follower = build(following(evaluating(ppo(runners=0), 0), "memory://followed", "m"))
    assert follower.evaluate()["redis_state"]["version"].endswith("-1")
    with pytest.raises(SettingsError, match="memory:// lives in one process"):
        following(ppo(), "memory://followed", "m").build_algo()


def test_resume(server: EmbeddedServer, build: Any) -> None:
    """A successor's first version is its predecessor's last: weights, filter and number. What the
    predecessor would still publish is refused, and one that does not fit takes nothing over.
    """
    url, name = server.url, "handed-over"
    first = build(with_redis_state(ppo(connector=mean_std), url, namespace=name))
    for _ in range(2):
        first.train()
    with pytest.raises(ApplyError, match="is this config that of the learner before"):
        with_redis_state(
            ppo(connector=mean_std, hidden=8), url, namespace=name, resume=True
        ).build_algo()
    with pytest.raises(ApplyError, match="MeanStdFilter"):
        with_redis_state(ppo(), url, namespace=name, resume=True).build_algo()
    first.train()  # Nobody took over yet.
    last = published(first)
    second = build(
        with_redis_state(ppo(connector=mean_std), url, namespace=name, resume=True, **PATIENT)
    )
    state = published(second)
    assert state["version"].generation > last["version"].generation
    assert state["version"].number == 1
    assert state["seq_no"] == last["seq_no"] > 0
    for key in ("rl_module/default_policy", "env_to_module_connector", "module_to_env_connector"):
        assert_same(state[key], last[key])
    with pytest.raises(StalePublisherError):
        first.train()
    second.train()
    newer = published(second)
    assert newer["seq_no"] > state["seq_no"]
    assert_runners_hold(second.env_runner_group, newer, expected=1)


def test_resume_of_target_networks(server: EmbeddedServer, build: Any) -> None:
    """What is not published and derived from it follows: target networks are copies."""
    config = (
        APPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=1, rollout_fragment_length=50)
        .learners(num_learners=0)
    )
    weights = state_of(config)
    publisher = StatePublisher(open_store(server.url), "targets")
    publisher.publish({"rl_module/default_policy": weights}, weights_seq_no=5).wait(WAIT)
    algo = build(with_redis_state(config, server.url, namespace="targets", resume=True))
    (pairs,) = (r.get() for r in algo.learner_group.foreach_learner(_targets))
    assert pairs
    for main, target in pairs:
        assert_same(main, target)
    learner = algo.learner_group.get_state(components="learner/rl_module", inference_only=True)
    mine = learner["learner"]["rl_module"]["default_policy"]
    assert_same({k: mine[k] for k in weights}, {k: np.asarray(v) for k, v in weights.items()})
    assert learner["learner"]["weights_seq_no"] >= 5
    publisher.close(timeout=0)


def _targets(learner: Any) -> Any:
    module = learner.module["default_policy"].unwrapped()
    return [
        tuple({k: v.numpy().copy() for k, v in net.state_dict().items()} for net in pair)
        for pair in module.get_target_network_pairs()
    ]


def test_resume_with_nothing_there(server: EmbeddedServer, build: Any) -> None:
    """Where nothing is published, a learner that would resume begins with its own state."""
    algo = build(with_redis_state(ppo(), server.url, namespace="fresh", resume=True))
    seen: list[Any] = []
    StateSubscriber(open_store(server.url), "fresh").wait_for(seen.append, timeout=WAIT)
    assert seen[0].version.number == 1
    assert len(held(algo.env_runner_group)) == 1


def test_the_page_on_sharing(
    server: EmbeddedServer, build: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """The code of docs/sharing.md runs, in its order, against a learner that is there."""
    page = (Path(__file__).parents[2] / "docs" / "sharing.md").read_text()
    following_code, sampling, without_ray, taking_over = re.findall(
        r"^```python\n(.*?)^```", page, re.M | re.S
    )
    monkeypatch.setenv("REDIS_STATE_SYNC_URL", server.url)
    config = PPOConfig().environment("CartPole-v1").env_runners(num_env_runners=0)
    learner = build(with_redis_state(config, namespace="my-run"))
    version = str(learner.redis_state_sync.publisher.last_version)
    names: dict[str, Any] = {
        **{"PPOConfig": PPOConfig, "with_redis_state": with_redis_state, "url": server.url},
        **{"StateSubscriber": StateSubscriber, "open_store": open_store},
    }
    exec(following_code, names)  # noqa: S102 - a page of ours
    exec(sampling, names)  # noqa: S102
    names["algo"].stop()
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [version] * 2

    loaded: list[Any] = []

    def act() -> None:
        if len(loaded) == 2:
            raise StopIteration
        learner.redis_state_sync.publisher.publish({"extra/more": 1}).wait(WAIT)

    with pytest.raises(StopIteration):
        exec(without_ray, {**names, "load": loaded.append, "act": act})  # noqa: S102
    names["config"] = PPOConfig().environment("CartPole-v1")
    exec(taking_over, names)  # noqa: S102
    assert names["config"].redis_state_settings.resume
