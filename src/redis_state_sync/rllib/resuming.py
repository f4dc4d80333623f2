"""Gives a learner what its predecessor published last, before it publishes anything itself.

RLlib makes an Algorithm with random weights, and restores a checkpoint afterwards. Whoever follows
the namespace would act with the random ones meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray.rllib.core import COMPONENT_LEARNER, COMPONENT_RL_MODULE
from ray.rllib.core.rl_module.apis import TargetNetworkAPI
from ray.rllib.utils.metrics import WEIGHTS_SEQ_NO

from redis_state_sync.errors import ApplyError, UnknownVersionError
from redis_state_sync.history import History
from redis_state_sync.pinning import NEWEST
from redis_state_sync.rllib.states import CONNECTORS, modules_in
from redis_state_sync.settings import Settings
from redis_state_sync.snapshot import Snapshot
from redis_state_sync.store import Store

_SAME = "is this config that of the learner before?"


def newest(store: Store, namespace: str, settings: Settings) -> Snapshot | None:
    """The newest published state; None if nothing is published.

    Raises:
        StoreError: If the store fails.
        CodecError: If the state is damaged.
    """
    history = History(
        store,
        namespace,
        timeout_s=settings.connect_timeout_s,
        transfer_timeout_s=settings.transfer_timeout_s,
        max_state_bytes=settings.max_state_bytes,
        node_cache_bytes=0,  # Read once: nobody else needs it here.
    )
    try:
        return history.fetch(NEWEST)
    except UnknownVersionError:
        return None


def check(learner_group: Any, connectors: Mapping[str, Any], snapshot: Snapshot) -> None:
    """Refuses a state that is not one for this learner, before anything is touched.

    Args:
        learner_group: The Algorithm's LearnerGroup.
        connectors: Component -> state of the Algorithm's connector pipelines.
        snapshot: What is published.

    Raises:
        ApplyError: With what is missing, or differs.
    """
    needed, known = (_modules(learner_group, inference_only=only) for only in (True, False))
    published = modules_in(snapshot)
    if needed.keys() != published.keys():
        raise ApplyError(
            f"version {snapshot.version} has modules {sorted(published)} and this learner "
            f"{sorted(needed)}: {_SAME}"
        )
    for module_id, name in published.items():
        state = snapshot.view(name)
        wrong = (needed[module_id].keys() - state.keys()) | (state.keys() - known[module_id].keys())
        shared = state.keys() & known[module_id].keys()
        wrong |= {n for n in shared if _shape(state[n]) != _shape(known[module_id][n])}
        if wrong:
            raise ApplyError(
                f"version {snapshot.version}, module {module_id!r}: {sorted(wrong)[:5]} are "
                f"missing on one side, or of another shape: {_SAME}"
            )
    for name in CONNECTORS:
        theirs = snapshot.get(name, {})
        if theirs.keys() != connectors.get(name, {}).keys():
            raise ApplyError(
                f"version {snapshot.version}, {name}: its state is of {sorted(theirs)}, this "
                f"learner's of {sorted(connectors.get(name, {}))}: {_SAME}"
            )


def give(algorithm: Any, snapshot: Snapshot) -> None:
    """Makes the state that of a learner and of its connectors, whole.

    Args:
        algorithm: A set-up Algorithm that nobody has trained yet.
        snapshot: What `check` let pass.
    """
    state: dict[str, Any] = {
        COMPONENT_RL_MODULE: {mid: snapshot[name] for mid, name in modules_in(snapshot).items()}
    }
    if snapshot.weights_seq_no is not None:
        state[WEIGHTS_SEQ_NO] = snapshot.weights_seq_no
    group = algorithm.learner_group
    group.set_state({COMPONENT_LEARNER: state})
    for result in group.foreach_learner(_renew_targets):
        result.get()  # Raises what failed.
    connectors = {name: snapshot[name] for name in CONNECTORS if name in snapshot}
    local = algorithm.env_runner
    if local is not None:
        local.set_state(connectors)
        return
    pipelines = (algorithm.env_to_module_connector, algorithm.module_to_env_connector)
    for name, pipeline in zip(CONNECTORS, pipelines, strict=True):
        if pipeline is not None and name in connectors:
            pipeline.set_state(connectors[name])


def _renew_targets(learner: Any) -> None:
    """Target networks are not published: they begin as copies, as those of a new learner do."""
    for module_id in learner.module.keys():  # noqa: SIM118 - a MultiRLModule is no dict.
        module = learner.module[module_id].unwrapped()
        if isinstance(module, TargetNetworkAPI):
            for main, target in module.get_target_network_pairs():
                target.load_state_dict(main.state_dict())


def _modules(learner_group: Any, *, inference_only: bool) -> dict[str, Any]:
    state = learner_group.get_state(
        components=f"{COMPONENT_LEARNER}/{COMPONENT_RL_MODULE}", inference_only=inference_only
    )
    modules: dict[str, Any] = state[COMPONENT_LEARNER][COMPONENT_RL_MODULE]
    return modules


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(getattr(value, "shape", ()))
