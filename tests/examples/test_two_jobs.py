"""Separate Ray jobs, started as the README of examples/two_jobs says, share a state and outlive
each other.
"""

from __future__ import annotations

import http.client
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any

import numpy as np
import pytest

from redis_state_sync import StatePublisher, StateSubscriber, Version, open_store
from redis_state_sync.embedded import EmbeddedServer
from redis_state_sync.testing import skip_or_fail
from tests.examples.two_jobs import FOLDER, README, Job

pytestmark = [pytest.mark.ray, pytest.mark.timeout(480)]
NAMESPACE = "two-jobs"  # What the scripts use unless they are told otherwise.
WAIT = 30.0


@pytest.fixture
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer() as running:
        yield running


@pytest.fixture
def start() -> Iterator[Callable[..., Job]]:
    """Starts a command of the README; what still runs when the test ends is killed."""
    with ExitStack() as stack:

        def _start(url: str, command: str, *more: str) -> Job:
            return stack.enter_context(Job(command, *more, env={"REDIS_STATE_SYNC_URL": url}))

        yield _start


def test_the_readme_has_every_script() -> None:
    """Each script of the folder has its command in the README, and each command is a script."""
    commands = re.findall(r"^python (\w+\.py)", README, re.M)
    assert {*commands, "common.py"} == {p.name for p in FOLDER.glob("*.py")}


class Recorder:
    """Reads the namespace all the time, as any reader would: every version, in order."""

    def __init__(self, url: str) -> None:
        self.versions: dict[Version, dict[str, Any]] = {}
        self._subscriber = StateSubscriber(open_store(url), NAMESPACE, poll_timeout_s=2.0)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(0.01):
            self._subscriber.refresh(self._take)

    def _take(self, snapshot: Any) -> None:
        assert all(version < snapshot.version for version in self.versions)
        weights = snapshot["rl_module/default_policy"]
        self.versions[snapshot.version] = {**weights, "seq_no": np.array(snapshot.weights_seq_no)}

    def close(self) -> None:
        self._ended.set()
        self._thread.join(WAIT)
        self._subscriber.close()


def version(found: re.Match[str]) -> Version:
    return Version.parse(found[1])


def test_two_drivers(start: Callable[..., Job]) -> None:
    """Evaluation and sampling wait for a learner, follow it, go on when it is killed, and follow
    its successors; a learner does not notice that they are killed; it hands over without losing a
    version, and versions never go back.
    """
    port = free_port()
    url = f"redis://127.0.0.1:{port}/0"
    start(url, "python server.py", "--port", str(port)).says(url)
    recorder = Recorder(url)
    try:
        evaluation = start(url, "python evaluate.py")
        evaluation.says("waits for a first version")
        first = start(url, "python train.py")
        first.says(r"learner: version (\S+), return")
        old = version(evaluation.says(r"evaluation: version (\S+), return \d+"))
        sampling = start(url, "python sample.py")
        assert version(sampling.says(r"sampling: \d+ steps with version (\S+)")) >= old

        second = start(url, "python train.py --take-over")
        begun = version(second.says(r"learner: begins with (\S+)"))
        first.says(f"handed over.*{NAMESPACE}.*taken over")
        assert first.ends() == 0
        last = max(v for v in recorder.versions if v.generation < begun.generation)
        assert begun.number == 1
        assert recorder.versions[begun].keys() == recorder.versions[last].keys()
        for name, value in recorder.versions[last].items():
            assert np.array_equal(recorder.versions[begun][name], value), name
        follow(begun, evaluation, sampling)

        second.kill()
        newest = max(recorder.versions)
        for job, says in ((evaluation, "evaluation: version"), (sampling, "steps with version")):
            job.skip()
            seen = [version(job.says(rf"{says} ([\d-]+)")) for _ in range(3)]
            assert seen[-1] <= max(recorder.versions)
            assert seen == sorted(seen)
            assert seen[-1].generation == newest.generation

        third = start(url, "python train.py --take-over")
        begun = version(third.says(r"learner: begins with (\S+)"))
        assert begun > newest
        follow(begun, evaluation, sampling)
        evaluation.kill()
        third.skip()
        for _ in range(2):
            assert version(third.says(r"learner: version (\S+), return")) > begun
        assert sampling.interrupt() == 0
        assert third.interrupt() == 0
    finally:
        recorder.close()


def follow(begun: Version, evaluation: Job, sampling: Job) -> None:
    """Both come to act with a version of the learner that began with this one."""
    for job, pattern in (
        (evaluation, r"evaluation: version (\S+), return"),
        (sampling, r"with version (\S+)"),
    ):
        while version(job.says(pattern)) < begun:
            pass


class Client:
    """Asks the policy server."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)

    def ask(self, path: str, body: Any = None) -> tuple[int, Any, Any]:
        """Status, headers and answer."""
        text = None if body is None else json.dumps(body)
        self._connection.request(
            "GET" if body is None else "POST", path, text, {"content-type": "application/json"}
        )
        reply = self._connection.getresponse()
        data = reply.read()
        with suppress(ValueError):
            return reply.status, reply.headers, json.loads(data)
        return reply.status, reply.headers, data

    def close(self) -> None:
        self._connection.close()


def model() -> tuple[Any, dict[str, Any]]:
    """A module as the jobs have, and weights for it."""
    import gymnasium as gym
    from ray.rllib.algorithms.ppo import PPOConfig

    config = PPOConfig().environment("CartPole-v1")
    spec = config.get_rl_module_spec(env=gym.make("CartPole-v1"), inference_only=True)
    module = spec.build()
    return module, dict(module.get_state())


def weights(number: int, like: dict[str, Any]) -> dict[str, Any]:
    rng = np.random.default_rng(number)
    return {k: rng.normal(0, 0.5, np.shape(v)).astype(np.float32) for k, v in like.items()}


def act(module: Any, state: dict[str, Any], observations: Any) -> list[int]:
    import torch

    module.set_state(state)
    with torch.no_grad():
        out = module.forward_inference({"obs": torch.from_numpy(observations)})
    return [int(action) for action in out["action_dist_inputs"].argmax(-1)]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_policy_server(
    server: EmbeddedServer, start: Callable[..., Job], request: pytest.FixtureRequest
) -> None:
    """Each answer is by the weights of just the version that it names, while versions come; before
    the first one it is 503 with Retry-After; and without the store it is by the last one.
    """
    try:
        import ray.serve  # noqa: F401
    except ImportError:
        skip_or_fail("Ray Serve is missing: pip install 'redis-state-sync[serve]'")
    port = free_port()
    serving = start(server.url, "python serve.py", "--port", str(port))
    serving.says("serving: ")
    client = Client(port)
    request.addfinalizer(client.close)
    for path, body in (("/act", {"obs": [0, 0, 0, 0]}), ("/health", None)):
        status, headers, _ = client.ask(path, body)
        assert (status, headers["Retry-After"]) == (503, "1"), path
    assert client.ask("/act", {"obs": [0, 0]})[0] == 422
    asking = start(server.url, "python ask.py", "--port", str(port), "--steps", "100000")
    asking.says("nothing is published yet")

    module, like = model()
    rng = np.random.default_rng(1)
    observations = rng.normal(0, 1, (40, 4)).astype(np.float32)
    publisher = StatePublisher(open_store(server.url), NAMESPACE)
    published: dict[str, list[int]] = {}

    def publish(number: int) -> None:
        state = weights(number, like)
        actions = act(module, state, observations)
        publication = publisher.publish({"rl_module/default_policy": state}, weights_seq_no=number)
        published[str(publication.version)] = actions
        publication.wait(WAIT)

    publish(1)
    assert version(asking.says(r"acting with version (\S+)")).number == 1
    seen: list[Version] = []
    asked, number = 0, 1
    while len(set(seen)) < 6:
        if asked % 60 == 30:  # Also in between of the answers for one version.
            number += 1
            publish(number)
        which = asked % len(observations)
        obs = [float(x) for x in observations[which]]
        status, headers, answer = client.ask("/act", {"obs": obs})
        assert status == 200, answer
        assert headers["X-State-Version"] == answer["version"]
        assert answer["action"] == published[answer["version"]][which]
        seen.append(Version.parse(answer["version"]))
        asked += 1
    assert seen == sorted(seen)
    assert len({tuple(actions) for actions in published.values()}) == len(published)

    _, _, health = client.ask("/health")
    assert health["version"] in published
    asking.says(r"acting with version \S+")
    server.kill()
    for _ in range(50):
        status, _, answer = client.ask("/act", {"obs": [0, 0, 0, 0]})
        assert status == 200
        assert Version.parse(answer["version"]) >= seen[-1]
    publisher.close(timeout=0)
    assert serving.interrupt() == 0
