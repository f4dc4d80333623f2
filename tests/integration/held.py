"""What EnvRunners really hold, and what is published, compared bit for bit."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from redis_state_sync import StateSubscriber

# For tests that expect a poll to succeed: others may keep the machine busy for longer than the
# default of 50 ms, and a poll that is missed is made up for by the next `sample()` only.
PATIENT = {"poll_timeout_s": 2.0}


def published(algo: Any) -> dict[str, Any]:
    """The newest version, read from the store by a reader of its own; "version" names it."""
    sync = algo.redis_state_sync
    sync.publisher.flush(10)
    got: dict[str, Any] = {}
    subscriber = StateSubscriber(sync.publisher.store, sync.publisher.keys.namespace)
    snapshot = subscriber.refresh(lambda s: got.update(s))
    assert snapshot is not None
    assert snapshot.version == sync.publisher.last_version
    return {**got, "version": snapshot.version, "seq_no": snapshot.weights_seq_no}


def read_runner(runner: Any) -> dict[str, Any]:
    """Runs in an EnvRunner: what it acts with."""
    module = runner.module
    by_module = (
        dict(module.items()) if hasattr(module, "_rl_modules") else {"default_policy": module}
    )
    return {
        "version": runner.redis_state_version,
        "seq_no": runner._weights_seq_no,
        "env_to_module_connector": copy.deepcopy(runner._env_to_module.get_state()),
        "module_to_env_connector": copy.deepcopy(runner._module_to_env.get_state()),
        **{
            f"rl_module/{mid}": {k: np.array(v) for k, v in m.get_state().items()}
            for mid, m in by_module.items()
        },
    }


def settle(algo: Any) -> dict[str, Any]:
    """Lets the sample() calls of an asynchronous algorithm end, and publishes once more.

    Filters go on changing while an EnvRunner samples; a newer version sets them to what is common.
    """
    group = algo.env_runner_group
    group.foreach_env_runner(lambda r: None, local_env_runner=False)
    algo.redis_state_sync.publisher.publish({"extra/settled": True}).wait(10)
    group.foreach_env_runner(lambda r: r.refresh_redis_state(), local_env_runner=False)
    return published(algo)


def held(group: Any) -> list[dict[str, Any]]:
    return group.foreach_env_runner(read_runner, local_env_runner=False)


def assert_same(a: Any, b: Any, path: str = "") -> None:
    """Equal in type, structure and every bit."""
    if isinstance(a, dict):
        assert isinstance(b, dict), path
        assert a.keys() == b.keys(), path
        for key in a:
            assert_same(a[key], b[key], f"{path}/{key}")
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), path
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_same(x, y, f"{path}[{i}]")
    elif isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        left, right = np.asarray(a), np.asarray(b)
        assert left.dtype == right.dtype, path
        assert left.tobytes() == right.tobytes(), path
    else:
        assert a == b, path


def assert_runners_hold(group: Any, state: dict[str, Any], *, expected: int) -> None:
    """Every remote EnvRunner has this version: weights, both connectors, and WEIGHTS_SEQ_NO."""
    runners = held(group)
    assert len(runners) == expected
    for runner in runners:
        assert runner["version"] == state["version"]
        assert runner["seq_no"] == state["seq_no"]
        for name, value in runner.items():
            if name.startswith("rl_module/"):
                # Either side may hold a value function that the other leaves out, as in Ray.
                theirs = state[name]
                common = value.keys() & theirs.keys()
                assert common in (value.keys(), theirs.keys()), name
                assert_same({k: value[k] for k in common}, {k: theirs[k] for k in common}, name)
            elif name.endswith("_connector"):
                assert_same(value, state[name], name)
