"""What an asynchronous learner publishes is the state of the update that has just ended."""

from __future__ import annotations

import queue
import threading
import time
from typing import Any

import pytest
import ray
from ray.rllib.algorithms.appo import APPOConfig
from ray.rllib.algorithms.impala import IMPALAConfig

from redis_state_sync.rllib import with_redis_state
from redis_state_sync.rllib.newest_state import NewestState, hand_out_newest_state

pytestmark = pytest.mark.usefixtures("ray_session")


class Learner:
    """The parts of `IMPALALearner` that its `update` waits with."""

    def __init__(self) -> None:
        self._agg_event = threading.Event()
        self._learner_state_queue: queue.Queue[Any] = queue.Queue(maxsize=1)
        self._learner_state_lock = threading.Lock()
        self._learner_state: Any = None


def test_a_learner_without_a_state_keeps_the_last_one() -> None:
    """Of several learners only the first gives states; the others wait as before."""
    learner: Any = Learner()
    hand_out_newest_state(learner)
    learner._learner_state_queue.put("first")
    for expected in ("first", "first"):
        learner._agg_event.set()
        assert learner._agg_event.is_set()
        assert learner._agg_event.wait()
        learner._agg_event.clear()
        assert not learner._agg_event.wait(0.001)
        assert learner._learner_state == expected


def test_other_learners_stay_as_they_are() -> None:
    """A learner that lacks a part, of PPO or of another release of Ray, is not touched."""
    learner: Any = Learner()
    del learner._learner_state_lock
    before = learner._agg_event
    hand_out_newest_state(learner)
    assert learner._agg_event is before
    hand_out_newest_state(object())


def watch(learner: Any) -> None:
    """Has a learner note what states there were when it gave one away."""
    learner.made, learner.given = [], []
    put, update = learner._learner_state_queue.put_nowait, learner.update

    def put_nowait(state: Any) -> None:
        learner.made.append(state["weights_seq_no"])
        put(state)

    def update_noted(*args: Any, return_state: bool = False, **kwargs: Any) -> Any:
        result = update(*args, return_state=return_state, **kwargs)
        state = result.get("_rl_module_state_after_update") if return_state else None
        if state is not None:
            learner.given.append((state["weights_seq_no"], learner.made[-1]))
        return result

    learner._learner_state_queue.put_nowait = put_nowait
    learner.update = update_noted


@pytest.mark.parametrize("config_class", [APPOConfig, IMPALAConfig])
def test_the_newest_state_is_given(server: Any, build: Any, config_class: Any) -> None:
    """Nearly each time it is the last one made; with Ray's own it is the one before it, or older.

    (Not each time: the learner thread may end another update before `update` returns.)
    """
    config = (
        config_class()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=1, rollout_fragment_length=50)
        .learners(num_learners=0)
        .training(train_batch_size_per_learner=50)
        .reporting(min_time_s_per_iteration=0, min_train_timesteps_per_iteration=0)
    )
    if config_class is APPOConfig:
        config.training(use_circular_buffer=False)
    with_redis_state(config, server.url)
    algo = build(config)
    learner = algo.learner_group._learner
    watch(learner)
    while len(learner.given) < 30:
        algo.train()
    newest = sum(given == last for given, last in learner.given)
    assert newest >= 0.8 * len(learner.given), learner.given


def test_a_learner_actors_last_state_is_published(server: Any, build: Any) -> None:
    """Without waiting for the next batch to be sent to it, and never followed by an older one."""
    config = (
        APPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=1, rollout_fragment_length=50)
        .learners(num_learners=1)
        .training(train_batch_size_per_learner=50, use_circular_buffer=False)
        .reporting(min_time_s_per_iteration=0, min_train_timesteps_per_iteration=0)
    )
    with_redis_state(config, server.url)
    algo = build(config)
    publisher = algo.redis_state_sync.publisher
    published: list[int] = []
    publish = publisher.publish

    def publish_noted(*args: Any, **kwargs: Any) -> Any:
        made = publish(*args, **kwargs)
        published.append(publisher._weights_seq_no)
        return made

    publisher.publish = publish_noted
    while not published or published[-1] < 20:
        algo.train()
    update = algo.learner_group.update
    algo.learner_group.update = lambda *args, **kwargs: []  # No further batch is sent.

    def last_made() -> int:
        (result,) = algo.learner_group.foreach_learner(lambda learner: learner._weights_seq_no)
        return int(result.get())

    deadline = time.monotonic() + 30
    while published[-1] < last_made():
        assert time.monotonic() < deadline, (published[-3:], last_made())
        algo.training_step()
        time.sleep(0.01)
    assert published == sorted(published)
    algo.learner_group.update = update


def test_a_lost_learner_actor_is_rllibs_business() -> None:
    """What an actor that died leaves unanswered is passed over."""
    actor = Gives.remote()
    group = Group(actor)
    delivered: list[Any] = []
    newest = NewestState(group, delivered.append)
    newest.install()
    assert group.update(batch=1) == "results"
    until_answered(newest)
    newest.look()
    assert delivered == [{"weights_seq_no": 7}]
    group.update()
    until_answered(newest)
    newest.look()
    assert len(delivered) == 1  # It was no newer.
    ray.kill(actor)
    group.update()
    until_answered(newest)
    newest.look()
    newest.look()
    assert len(delivered) == 1


@ray.remote(num_cpus=0)
class Gives:
    """A learner actor whose state is always the same."""

    def apply(self, _: Any) -> Any:
        return {"weights_seq_no": 7}


class Group:
    """The parts of a LearnerGroup that matter here."""

    is_local = False

    def __init__(self, actor: Any) -> None:
        self._workers = [actor]

    def update(self, **_: Any) -> str:
        return "results"


def until_answered(newest: Any) -> None:
    ray.wait([newest._reply], timeout=30)
